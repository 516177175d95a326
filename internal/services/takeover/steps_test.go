package takeover

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestWalk(t *testing.T) {
	broken := errors.New("broken")
	var done []string
	does := func(name string, err error) func(*Options, context.Context) error {
		return func(*Options, context.Context) error { done = append(done, name); return err }
	}
	for name, c := range map[string]struct {
		second error
		dry    bool
		want   string
		err    error
	}{
		"each step":         {nil, false, "look change look-again", nil},
		"a dry run":         {nil, true, "look would-change look-again", nil},
		"a step that ends":  {errDone, false, "look change", nil},
		"a step that fails": {broken, false, "look change", broken},
	} {
		done = nil
		o := Options{DryRun: c.dry, Out: io.Discard}
		err := o.walk(t.Context(), []step{
			{"look", does("look", nil), nil},
			{"change", does("change", c.second), does("would-change", nil)},
			{"look again", does("look-again", nil), nil},
		})
		if got := strings.Join(done, " "); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %s, %v; want %s, %v", name, got, err, c.want, c.err)
		}
	}
}

func TestStepsAreNamed(t *testing.T) {
	for what, text := range map[string]string{"from": FromSteps(), "to": ToSteps()} {
		if !strings.HasPrefix(text, "  1. ") || strings.Contains(text, ". \n") {
			t.Errorf("%s:\n%s", what, text)
		}
	}
}
