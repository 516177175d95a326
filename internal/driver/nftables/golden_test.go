package nftables

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

var updateGolden = flag.Bool("update", false, "write the golden files anew")

// goldenNft prints the golden files; another version prints tables in another way.
const goldenNft = "v1.0.6"

// A table that another release programmed is adopted without an operation, so what the kernel is
// told must not change unnoticed: not the layout, a name, a comment nor an order.
func TestTableIsGolden(t *testing.T) {
	t.Parallel()
	if out, err := exec.Command("nft", "--version").Output(); err != nil || !strings.Contains(string(out), goldenNft) {
		t.Skipf("the golden files are what nft %s prints: this one is %s (%v)", goldenNft, out, err)
	}
	if nft.MayMiss() {
		t.Skip("the golden files are of kernels whose sets miss nothing")
	}
	const seed = 2 // of the policy that is printed: a small one with rules of most sorts
	policed, open := testState(), testState()
	policed.Policy, open.Policy = randomPolicy(rand.New(rand.NewPCG(seed, 1)), state.Device{Index: 2, Name: "deny-a"}), state.NewPolicy()
	for name, c := range map[string]struct {
		options  driver.Options
		state    *state.State
		elements bool
	}{
		"services": {options: driver.Options{}, state: testState()},
		"fabric":   {options: driver.Options{Policy: true, Fabric: true}, state: open},
		"policies": {driver.Options{Policy: true}, policed, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := testNS(t)
			if out, err := ns.Run("ip", "link", "add", "deny-a", "index", "2", "type", "bridge"); err != nil { // before Linux 6.16, hooks need it
				t.Fatalf("%v: %s", err, out)
			}
			_, plan := adopt(t, openIn(t, ns, Options{Options: c.options, Shared: true}), c.state)
			var table []byte
			if err := ns.Do(func() (err error) {
				table, err = exec.Command("nft", "-t", "list", "table", "inet", ruleset.TableName).Output()
				return err
			}); err != nil {
				t.Fatal(err)
			}
			text := string(table)
			if c.elements {
				text += elements(plan)
			}
			golden(t, "testdata/"+name+".nft", text)
		})
	}
}

// The note of a table is the digest of all that is constant in it.
func TestNotesAreGolden(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for _, o := range []ruleset.Options{
		{}, {Policy: true}, {Policy: true, Fabric: true}, {FlowOffload: true}, {Policy: true, FlowOffload: true}, {Policy: true, MayMiss: true},
	} {
		fmt.Fprintf(&text, "%+v: %s\n", o, ruleset.New(o).Note())
	}
	golden(t, "testdata/notes.golden", text.String())
}

// elements are the lines of a plan about elements, sorted, as comments.
func elements(plan string) string {
	var list []string
	for line := range strings.Lines(plan) {
		if strings.Contains(line, "element") {
			list = append(list, "# "+strings.TrimSpace(line)+"\n")
		}
	}
	slices.Sort(list)
	return strings.Join(list, "")
}

// golden fails where a file says something else.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *updateGolden {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(got, "\n")
	for i, l := range strings.Split(string(want), "\n") {
		if i >= len(lines) || lines[i] != l {
			t.Fatalf("line %d of %s is another one: %s\nA table that the release before programmed would be written anew.", i+1, file, l)
		}
	}
}
