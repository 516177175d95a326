package policytest

import (
	"encoding/json"
	"strconv"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policytest/oracle"
	"sluice.dev/sluice/internal/source/kinds"
)

type fields = map[string]any

// addCalico writes Calico's objects as their users do, for the translator to read.
func (t *translation) addCalico(c oracle.Calico) {
	for _, tier := range c.Tiers {
		t.decode(model.TierKind, "", tier.Name, fields{"order": tier.Order, "defaultAction": tier.DefaultAction})
	}
	for _, s := range c.Sets {
		kind := model.GlobalNetworkSet
		if s.Namespace != "" {
			kind = model.NamespacedNetworkSet
		}
		t.decodeLabelled(kind, s.Namespace, s.Name, s.Labels, fields{"nets": s.Nets})
	}
	for _, p := range c.Policies {
		spec := fields{"tier": p.Tier, "order": p.Order, "ingress": calicoRules(p.Ingress), "egress": calicoRules(p.Egress)}
		set(spec, "selector", p.Selector.Text)
		set(spec, "namespaceSelector", p.NamespaceSelector.Text)
		if p.Types != nil {
			spec["types"] = p.Types
		}
		if p.Namespace != "" {
			t.decode(model.CalicoPolicy, p.Namespace, p.Name, spec)
		} else {
			t.decode(model.GlobalNetworkPolicy, "", p.Name, spec)
		}
	}
}

func (t *translation) decode(kind model.Kind, namespace, name string, spec fields) {
	t.decodeLabelled(kind, namespace, name, nil, spec)
}

func (t *translation) decodeLabelled(kind model.Kind, namespace, name string, labels map[string]string, spec fields) {
	meta := fields{"name": name, "labels": labels}
	set(meta, "namespace", namespace)
	text, err := json.Marshal(fields{"metadata": meta, "spec": spec})
	if err != nil {
		t.add(kind, namespace, name, nil, true, err)
		return
	}
	o, err := kinds.Find(kind).Decode(kinds.Text{Data: text})
	if o != nil {
		name, namespace = o.Ref().Name.Name, o.Ref().Name.Namespace
	}
	t.add(kind, namespace, name, o, o == nil, err)
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
