package kubeobj

import "testing"

// A value of a wrong type in a field that only affects a policy's place leaves the subject known,
// and so a policy that denies.
func TestWrongTypesBesideTheSubjectDeny(t *testing.T) {
	for _, spec := range []string{`"priority": "high", "tier": "Admin"`, `"priority": 1, "tier": 5`, `"priority": {}, "tier": []`} {
		text := `{"metadata": {"name": "p"}, "spec": {"subject": {"namespaces": {}}, "ingress": [{"action": "Accept", "from": [{"namespaces": {}}]}], ` + spec + `}}`
		p, err := DecodeClusterNetworkPolicy([]byte(text), nil)
		if err == nil || p == nil || p.Refused == "" || !p.Ingress || p.Subject.IsZero() || p.Key.Name.Name != "p" {
			t.Errorf("%s: %+v, %v", spec, p, err)
		}
	}
}
