package source

import (
	"errors"
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/model"
)

func TestFault(t *testing.T) {
	for _, c := range []struct {
		name      string
		delivered any
		read      any
		want      string
	}{
		{"never good", nil, nil, model.InForceNothing},
		{"a refused policy", &model.Policy{Refused: "x"}, &model.Policy{Refused: "x"}, model.InForceDeny},
		{"a policy refused before", &model.Policy{Refused: "x"}, nil, model.InForceDeny},
		{"a refused set", &model.NetworkSet{Refused: "x"}, &model.NetworkSet{Refused: "x"}, model.InForceDoubt},
		{"a set refused in part", &model.NetworkSet{Refused: "x", Nets: make([]netip.Prefix, 1)}, nil, model.InForceDoubtRest},
		{"a NetworkPolicy refused in part", &model.Policy{Key: model.PolicyKey{Kind: model.NetworkPolicy}, Refused: "x", EgressRules: make([]model.PolicyRule, 1)}, nil, model.InForceIsolateRest},
		{"a refused tier", &model.Tier{Refused: "x"}, &model.Tier{Refused: "x"}, model.InForceTier},
		{"a part left out", &model.Service{}, &model.Service{}, model.InForceRest},
		{"an earlier policy", &model.Policy{}, &model.Policy{Refused: "x"}, model.InForceLast},
		{"an earlier set", &model.NetworkSet{}, nil, model.InForceLast},
	} {
		if reason, got := Fault(c.delivered, c.read, errors.New("x is odd")); got != c.want || reason != "x is odd" {
			t.Errorf("%s: %q, %q, want %q", c.name, reason, got, c.want)
		}
	}
	if reason, got := Fault(&model.Policy{Refused: "x", Ignored: true}, nil, errors.New("x is odd")); reason != "ignored: x is odd" || got != model.InForceNothing {
		t.Errorf("an ignored policy: %q, %q", reason, got)
	}
}
