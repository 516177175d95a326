package nftables

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/state"
)

// Counters are read though the table changes meanwhile, and after a reader that gave up.
func TestCountersAreReadWhateverElseHappens(t *testing.T) {
	t.Parallel()
	ns := testNS(t)
	d := openIn(t, ns, Options{Shared: true, Options: driver.Options{Policy: true}})
	want := state.New()
	want.Policy = state.NewPolicy()
	adopt(t, d, want)
	var many strings.Builder // so that the kernel delivers them in several messages
	for i := range 1000 {
		fmt.Fprintf(&many, "add counter inet %s more-%d\n", ruleset.TableName, i)
	}
	if out, err := ns.Run("nft", many.String()); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	found := map[string]bool{}
	err := d.readCounters(t.Context(), func(name string, _ uint64) {
		if len(found) == 0 {
			if out, err := ns.Run("nft", "add table inet other"); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		}
		found[name] = true
	})
	if err != nil || !found[ruleset.DropPrefix+string(state.DropPolicy)] {
		t.Errorf("while the ruleset changes: %d counters, %v", len(found), err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	if err := d.readCounters(ctx, func(string, uint64) { cancel() }); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if counts, err := d.DropCounts(t.Context()); err != nil || len(counts) == 0 {
		t.Errorf("after a reader that gave up: %v, %v", counts, err)
	}
}
