package source

import (
	"testing"

	"sluice.dev/sluice/internal/model"
)

func TestInForce(t *testing.T) {
	for _, c := range []struct {
		name      string
		delivered any
		present   bool
		want      string
	}{
		{"never good", nil, false, model.InForceNothing},
		{"a refused policy", &model.Policy{Refused: "x"}, true, model.InForceDeny},
		{"a policy refused before", &model.Policy{Refused: "x"}, false, model.InForceDeny},
		{"a refused set", &model.NetworkSet{Refused: "x"}, true, model.InForceDoubt},
		{"a part left out", &model.Service{}, true, model.InForceRest},
		{"an earlier policy", &model.Policy{}, false, model.InForceLast},
		{"an earlier set", &model.NetworkSet{}, false, model.InForceLast},
	} {
		if got := InForce(c.delivered, c.present); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
