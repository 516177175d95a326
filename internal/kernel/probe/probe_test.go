package probe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMet(t *testing.T) {
	for _, c := range []struct {
		answer         error
		missing, again bool // the kernel lacks it; it is asked a second time
	}{
		{nil, false, false},
		{fmt.Errorf("create rule: %w", unix.ENOENT), true, false},
		{unix.EOPNOTSUPP, true, false},
		{unix.EINVAL, true, false},
		{unix.EPERM, false, true},
		{context.Canceled, false, true},
	} {
		asked := 0
		r := &Requirement{Name: "verdict maps", Since: "3.13", Modules: []string{"nf_tables", "nft_x"},
			Check: func(context.Context) error { asked++; return c.answer }}
		for range 2 {
			err := r.Met(t.Context())
			if !errors.Is(err, c.answer) || errors.Is(err, ErrNotSupported) != c.missing {
				t.Errorf("answer %v: %v", c.answer, err)
			}
			if c.missing && !strings.Contains(err.Error(), "verdict maps: not supported by this kernel: "+c.answer.Error()+" (needs Linux 3.13 with nf_tables, nft_x)") {
				t.Errorf("%v does not say what is needed", err)
			}
		}
		if asked == 2 != c.again {
			t.Errorf("answer %v: asked %d times", c.answer, asked)
		}
	}
}

func TestMissing(t *testing.T) {
	answers := map[string]error{"a": nil, "b": unix.ENOENT, "c": unix.EOPNOTSUPP}
	var all []*Requirement
	for _, name := range []string{"a", "b", "c"} {
		all = append(all, &Requirement{Name: name, Since: "6.1", Check: func(context.Context) error { return answers[name] }})
	}
	if err := Missing(t.Context(), all[:1]); err != nil {
		t.Error(err)
	}
	err := Missing(t.Context(), all)
	if err == nil || strings.Contains(err.Error(), "a: ") || !strings.Contains(err.Error(), "b: not supported") || !strings.Contains(err.Error(), "c: not supported") {
		t.Errorf("%v, want what is missing and nothing else", err)
	}
	denied := func(context.Context) error { return unix.EPERM }
	if err := Missing(t.Context(), []*Requirement{{Name: "a", Check: denied}, {Name: "b", Check: denied}}); err == nil || err.Error() != unix.EPERM.Error() {
		t.Errorf("%q, want what two have in common once", err)
	}
}
