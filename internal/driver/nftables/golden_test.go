package nftables

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/driver/nftables/program"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

var updateGolden = flag.Bool("update", false, "write the golden file anew")

// A table that another release programmed is adopted without an operation, so what the kernel is
// told must not change unnoticed: not the layout, a name, a comment nor an order.
func TestProgramIsGolden(t *testing.T) {
	t.Parallel()
	const file = "testdata/program.golden"
	var out strings.Builder
	line := func(what, name string, content []byte) {
		fmt.Fprintf(&out, "%s %s %x\n", what, name, sha256.Sum256(content))
	}
	for _, o := range []program.Options{{}, {Policy: true}, {Policy: true, Fabric: true}} {
		p := program.New(o)
		if o.Fabric {
			fmt.Fprint(&out, "outgoing, ")
		}
		fmt.Fprintf(&out, "policy %v: %s\n", o.Policy, p.Note())
		for _, s := range p.Sets {
			var a nft.Attrs
			s.Write(&a, program.TableName)
			line("set", s.Name, a.B)
		}
		for _, c := range p.Chains {
			var a nft.Attrs
			c.Write(&a, program.TableName)
			for _, r := range c.Rules {
				r.Write(&a, program.TableName, c.Name)
			}
			line("chain", c.Name, a.B)
		}
		for _, name := range p.Counters {
			fmt.Fprintln(&out, "counter", name)
		}
	}
	for _, policy := range []bool{false, true} {
		fmt.Fprintf(&out, "flow offload, policy %v: %s\n", policy, program.New(program.Options{Policy: policy, FlowOffload: true}).Note())
	}
	fmt.Fprintf(&out, "looks again: %s\n", program.New(program.Options{Policy: true, MayMiss: true}).Note())
	for seed := range uint64(8) {
		p, s := program.New(program.Options{Policy: true}), testState()
		if seed%2 == 1 {
			p.AskApart()
		}
		s.Policy = randomPolicy(rand.New(rand.NewPCG(seed, 1)), state.Device{Index: 2, Name: "deny-a"})
		sums := map[string]table.Sum{}
		p.EachElement(s, func(e *nft.Element) {
			n := sums[e.Set.Name]
			n.Add(e)
			sums[e.Set.Name] = n
		})
		uses := table.NewChainRefs()
		p.EachChain(s, uses.Use)
		line("elements", fmt.Sprint(seed), fmt.Append(nil, sums))
		all := map[string]string{} // a chain's name stands for its rules; its comment is of who wrote it first
		for name, e := range uses.Chains {
			all[name] = fmt.Sprint(e.Refs, e.Rules, e.Counters, e.Hook != nil)
		}
		line("chains", fmt.Sprint(seed), fmt.Append(nil, all))
	}
	if *updateGolden {
		if err := os.WriteFile(file, []byte(out.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(out.String(), "\n")
	for i, l := range strings.Split(string(want), "\n") {
		if i >= len(got) || got[i] != l {
			t.Fatalf("line %d of %s is another one: %s\nA table that the release before programmed would be written anew.", i+1, file, l)
		}
	}
}
