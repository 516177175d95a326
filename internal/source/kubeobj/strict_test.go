package kubeobj

import (
	"errors"
	"strings"
	"testing"
)

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

// All that is wrong with a policy is said in one line, without patterns, with the places in lists.
func TestFaultsAreOneLine(t *testing.T) {
	for spec, want := range map[string]string{
		`"podSelector": {}, "ingress": [{}, {"form": []}]`: "line 7: twice; spec.ingress[1].form: there is no such field",
		`"podSelector": {}, "ingress": [{"ports": 80}]`:    "line 7: twice; spec.ingress[0].ports: number found where a list belongs",
	} {
		_, err := DecodeNetworkPolicy([]byte(`{"metadata": {"name": "p"}, "spec": {`+spec+`}}`), errors.New("line 7: twice"))
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", spec, err, want)
		}
	}
	for _, labels := range []string{`"a b": "c"`, `"a": "c d"`, `"a/b/c": ""`, `"": ""`} {
		_, err := DecodeNetworkPolicy([]byte(`{"metadata": {"name": "p"}, "spec": {"podSelector": {"matchLabels": {`+labels+`}}}}`), nil)
		if err == nil || strings.ContainsAny(err.Error(), "\n*?") || !strings.HasPrefix(err.Error(), "spec.podSelector.matchLabels[") {
			t.Errorf("%s: %v", labels, err)
		}
	}
}
