package source

import (
	"testing"

	"sluice.dev/sluice/internal/model"
)

func TestInForce(t *testing.T) {
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
		{"a part left out", &model.Service{}, &model.Service{}, model.InForceRest},
		{"an earlier policy", &model.Policy{}, &model.Policy{Refused: "x"}, model.InForceLast},
		{"an earlier set", &model.NetworkSet{}, nil, model.InForceLast},
	} {
		if got := InForce(c.delivered, c.read); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
