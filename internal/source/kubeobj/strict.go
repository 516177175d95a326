package kubeobj

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	kjson "sigs.k8s.io/json"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

// Policies are decoded strictly: an unknown field might have narrowed what they allow, so the
// object is refused. Metadata and status may contain anything.

// DecodeNetworkPolicy reads and translates a networking.k8s.io/v1 NetworkPolicy in JSON; one
// without a namespace is in "default". A faulty policy, also one with an unknown field, is returned
// as by NetworkPolicy. also is a fault of the text from which the JSON was made, or nil.
func DecodeNetworkPolicy(text []byte, also error) (*model.Policy, error) {
	translate := func(o *networkingv1.NetworkPolicy) (*model.Policy, error) {
		o.Namespace = cmp.Or(o.Namespace, "default")
		return NetworkPolicy(o)
	}
	return decodePolicy(text, also, translate, []string{"podSelector", "policyTypes"})
}

// DecodeClusterNetworkPolicy does the same for a policy.networking.k8s.io/v1beta1
// ClusterNetworkPolicy, which has no namespace.
func DecodeClusterNetworkPolicy(text []byte, also error) (*model.Policy, error) {
	translate := func(o *policyv1beta1.ClusterNetworkPolicy) (*model.Policy, error) {
		o.Namespace = ""
		return ClusterNetworkPolicy(o)
	}
	return decodePolicy(text, also, translate, []string{"subject", "tier", "priority"}, []string{"subject"})
}

// decodePolicy is given lists of the fields of the spec that determine to whom a policy applies.
// The first list all of whose fields can be read is enough to deny.
func decodePolicy[K any](text []byte, also error, translate func(*K) (*model.Policy, error), heads ...[]string) (*model.Policy, error) {
	o := new(K)
	wrong := DecodeStrictly(text, o)
	switch {
	case also != nil && wrong != nil:
		wrong = fmt.Errorf("%w; %w", also, wrong)
	case also != nil:
		wrong = also
	}
	if wrong == nil {
		return translate(o)
	}
	for _, head := range heads {
		o = new(K)
		if DecodeStrictly(headOf(text, head), o) != nil {
			continue
		}
		p, _ := translate(o)
		if p != nil {
			p.Refuse(wrong)
		}
		return p, wrong
	}
	return nil, wrong
}

// headOf makes an object that applies to the same pods in the same directions as the one in text,
// and has nothing else.
func headOf(text []byte, head []string) []byte {
	var o struct {
		Metadata struct {
			Name      json.RawMessage `json:"name,omitempty"`
			Namespace json.RawMessage `json:"namespace,omitempty"`
		} `json:"metadata"`
		Spec map[string]json.RawMessage `json:"spec"`
	}
	// Fields of a wrong type are missing then, and are reported by the caller.
	_ = kjson.UnmarshalCaseSensitivePreserveInts(text, &o)
	for field, value := range o.Spec {
		switch {
		case slices.Contains(head, field):
		case (field == "ingress" || field == "egress") && hasItems(value):
			o.Spec[field] = json.RawMessage("[{}]")
		default:
			delete(o.Spec, field)
		}
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil
	}
	return text
}

// hasItems reports whether a value is neither an empty list nor null.
func hasItems(value json.RawMessage) bool {
	var list []json.RawMessage
	return json.Unmarshal(value, &list) != nil || len(list) > 0
}

// DecodeStrictly decodes JSON whose keys, at the top and in spec, must be fields in their exact
// spelling, each only once.
func DecodeStrictly(text []byte, o any) error {
	wrong, err := kjson.UnmarshalStrict(text, o)
	if err != nil {
		if field, reason, ok := fault.Misfit(text, err); ok && field != "" {
			return errors.New(field + ": " + reason)
		}
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	var reasons []string
	for _, w := range wrong {
		field, reason := w.(kjson.FieldError).FieldPath(), ": there is no such field"
		switch {
		case strings.HasPrefix(field, "metadata."), strings.HasPrefix(field, "status"):
			continue
		case strings.HasPrefix(w.Error(), "duplicate"):
			reason = ": is given twice"
		}
		reasons = append(reasons, field+reason)
	}
	if len(reasons) == 0 {
		return nil
	}
	return errors.New(strings.Join(reasons, "; "))
}
