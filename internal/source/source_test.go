package source

import (
	"errors"
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
