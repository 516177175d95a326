package policytest

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
	"sluice.dev/sluice/test/policytest/oracle"
)

type fields = map[string]any

// calicoObject is an object of Calico's as its users write it.
type calicoObject struct {
	kind            model.Kind
	namespace, name string
	labels          map[string]string
	spec            fields
}

// calicoObjects writes Calico's objects as their users do.
func calicoObjects(c oracle.Calico) (all []calicoObject) {
	for _, tier := range c.Tiers {
		all = append(all, calicoObject{model.TierKind, "", tier.Name, nil, fields{"order": tier.Order, "defaultAction": tier.DefaultAction}})
	}
	for _, s := range c.Sets {
		kind := model.GlobalNetworkSet
		if s.Namespace != "" {
			kind = model.NamespacedNetworkSet
		}
		all = append(all, calicoObject{kind, s.Namespace, s.Name, s.Labels, fields{"nets": s.Nets}})
	}
	for _, p := range c.Policies {
		spec := fields{"tier": p.Tier, "order": p.Order, "ingress": calicoRules(p.Ingress), "egress": calicoRules(p.Egress)}
		set(spec, "selector", p.Selector.Text)
		set(spec, "namespaceSelector", p.NamespaceSelector.Text)
		if p.Types != nil {
			spec["types"] = p.Types
		}
		kind := model.GlobalNetworkPolicy
		if p.Namespace != "" {
			kind = model.CalicoPolicy
		}
		all = append(all, calicoObject{kind, p.Namespace, p.Name, nil, spec})
	}
	return all
}

// text is the object in JSON.
func (o calicoObject) text() ([]byte, error) {
	meta := fields{"name": o.name, "labels": o.labels}
	set(meta, "namespace", o.namespace)
	return json.Marshal(fields{"apiVersion": "projectcalico.org/v3", "kind": kinds.Find(o.kind).Name, "metadata": meta, "spec": o.spec})
}

// addCalico has the translator read them.
func (t *translation) addCalico(c oracle.Calico) {
	for _, o := range calicoObjects(c) {
		text, err := o.text()
		if err != nil {
			t.add(o.kind, o.namespace, o.name, nil, true, err)
			continue
		}
		v, err := kinds.Find(o.kind).Decode(kinds.Text{Data: text})
		name, namespace := o.name, o.namespace
		if v != nil {
			name, namespace = v.Ref().Name.Name, v.Ref().Name.Namespace
		}
		t.add(o.kind, namespace, name, v, v == nil, err)
	}
}

// RandomPolicies are the policies of a random cluster, and the tiers and sets that they need, as
// their users write them in JSON. They select the namespaces red, green and blue, and labels app,
// tier and env with the values a, b and c.
func RandomPolicies(seed uint64) (texts [][]byte, err error) {
	o := newDice(seed).cluster()
	add := func(text []byte, failed error) { texts, err = append(texts, text), errors.Join(err, failed) }
	for _, p := range o.NetworkPolicies {
		p.APIVersion, p.Kind = "networking.k8s.io/v1", "NetworkPolicy"
		add(json.Marshal(p))
	}
	for _, p := range o.ClusterPolicies {
		p.APIVersion, p.Kind = "policy.networking.k8s.io/v1beta1", "ClusterNetworkPolicy"
		add(json.Marshal(p))
	}
	for _, p := range calicoObjects(o.Calico) {
		add(p.text())
	}
	return texts, err
}

// set leaves out what is empty.
func set(f fields, key, value string) {
	if value != "" {
		f[key] = value
	}
}

func calicoRules(rules []oracle.CalicoRule) []fields {
	out := []fields{}
	for _, r := range rules {
		f := fields{"action": r.Action, "source": calicoEnd(r.Source), "destination": calicoEnd(r.Destination)}
		set(f, "protocol", r.Protocol)
		set(f, "notProtocol", r.NotProtocol)
		out = append(out, f)
	}
	return out
}

func calicoEnd(e oracle.CalicoEnd) fields {
	f := fields{}
	set(f, "selector", e.Selector.Text)
	set(f, "notSelector", e.NotSelector.Text)
	set(f, "namespaceSelector", e.NamespaceSelector.Text)
	if namespace, name, ok := strings.Cut(e.Service, "/"); ok {
		f["services"] = fields{"namespace": namespace, "name": name}
	}
	for key, list := range map[string][]string{"nets": e.Nets, "notNets": e.NotNets} {
		if len(list) > 0 {
			f[key] = list
		}
	}
	for key, list := range map[string][]string{"ports": e.Ports, "notPorts": e.NotPorts} {
		if len(list) > 0 {
			f[key] = calicoPorts(list)
		}
	}
	return f
}

// calicoPorts writes numbers as numbers, and ranges and names as text.
func calicoPorts(ports []string) (out []any) {
	for _, p := range ports {
		if n, err := strconv.Atoi(p); err == nil {
			out = append(out, n)
		} else {
			out = append(out, strings.TrimSpace(p))
		}
	}
	return out
}
