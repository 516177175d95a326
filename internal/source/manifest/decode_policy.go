package manifest

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kubeobj"
)

// Policies are decoded strictly: a field that isn't known might have narrowed
// what they allow, so the object is refused that has one. Metadata and status
// may hold anything.

// policyKind is how one of Kubernetes' policies is decoded.
type policyKind[K any] struct {
	namespaced bool
	meta       func(*K) *metav1.ObjectMeta
	translate  func(*K) (*model.Policy, error)
	head       []string // the fields of its spec that say whom it applies to
}

var networkPolicies = policyKind[networkingv1.NetworkPolicy]{
	namespaced: true,
	meta:       func(o *networkingv1.NetworkPolicy) *metav1.ObjectMeta { return &o.ObjectMeta },
	translate:  kubeobj.NetworkPolicy,
	head:       []string{"podSelector", "policyTypes"},
}

var clusterPolicies = policyKind[policyv1alpha2.ClusterNetworkPolicy]{
	meta:      func(o *policyv1alpha2.ClusterNetworkPolicy) *metav1.ObjectMeta { return &o.ObjectMeta },
	translate: kubeobj.ClusterNetworkPolicy,
	head:      []string{"tier", "priority", "subject"},
}

// decode reads a policy. One that is at fault is refused, if it is known
// whom it applies to; see kubeobj. That a key of it was given twice before it
// became JSON is what ambiguous says.
func (k policyKind[K]) decode(text []byte, ambiguous error) (model.Name, any, error) {
	o := new(K)
	wrong := errors.Join(ambiguous, decodeStrictly(text, o))
	if wrong == nil {
		return translate(k.meta(o), k.namespaced, o, k.translate)
	}
	o = new(K)
	if decodeStrictly(k.headOf(text), o) != nil {
		return complete(k.meta(o), k.namespaced), nil, wrong
	}
	name := complete(k.meta(o), k.namespaced)
	if p, _ := k.translate(o); p != nil {
		return name, refuse(p, wrong), wrong
	}
	return name, nil, wrong
}

// refuse makes a policy deny.
func refuse(p *model.Policy, why error) *model.Policy {
	p.Refused, p.IngressRules, p.EgressRules = why.Error(), nil, nil
	return p
}

// headOf makes an object that applies to the same pods in the same directions
// as the one in text, with no more to it than is needed for that.
func (k policyKind[K]) headOf(text []byte) []byte {
	var o struct {
		Metadata struct {
			Name      json.RawMessage `json:"name,omitempty"`
			Namespace json.RawMessage `json:"namespace,omitempty"`
		} `json:"metadata"`
		Spec map[string]json.RawMessage `json:"spec"`
	}
	// What is of a wrong type here is missing then, and found again there.
	_ = kjson.UnmarshalCaseSensitivePreserveInts(text, &o)
	for field, value := range o.Spec {
		switch {
		case slices.Contains(k.head, field):
		case (field == "ingress" || field == "egress") && hasItems(value):
			o.Spec[field] = json.RawMessage("[{}]")
		default:
			delete(o.Spec, field)
		}
	}
	head, err := json.Marshal(o)
	if err != nil {
		return nil
	}
	return head
}

// hasItems tells whether a value is neither an empty list nor null.
func hasItems(value json.RawMessage) bool {
	var list []json.RawMessage
	return json.Unmarshal(value, &list) != nil || len(list) > 0
}

// decodeStrictly decodes JSON whose keys must be fields, each but once and in
// their exact spelling, in spec and at the top.
func decodeStrictly(text []byte, o any) error {
	wrong, err := kjson.UnmarshalStrict(text, o)
	if err != nil {
		return decodeError(err)
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

// decodeError says in words why JSON doesn't fit the types.
func decodeError(err error) error {
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && t.Field != "" {
		return errors.New(t.Field + ": should not be a " + t.Value)
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}
