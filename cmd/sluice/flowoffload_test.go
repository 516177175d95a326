package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/driver/nftables"
)

// With --flow-offload an agent has a flowtable at the interfaces that there are, also those that
// come later, and works on when one goes; the next agent, without it, has none, and nothing else
// changes. A kernel that has no flowtables serves all the same. 'plan' says what an agent would do
// with the flag.
func TestFlowOffload(t *testing.T) {
	t.Parallel()
	ns := nodeNS(t)
	dir := folder(t, map[string]string{"web.yaml": web})
	socket := filepath.Join(t.TempDir(), "s.sock")
	can := nftables.FlowOffload.Met(t.Context()) == nil
	table := func() string { return nft(t, ns, "list table inet sluice") }
	plan := func(args ...string) string {
		var b bytes.Buffer
		if err := ns.Do(func() error {
			if code := execute(t.Context(), append([]string{"plan", "--manifests", dir, "--node", "node-a"}, args...), &b, &b); code != cli.ExitOK {
				t.Errorf("plan exits with %d: %s", code, b.String())
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	run := func(args ...string) (stop func()) {
		t.Helper()
		stop = startAgent(t, dir, socket, ns.Do, args...)
		if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
			t.Fatal(stderr)
		}
		return stop
	}
	for _, device := range []string{"first", "second"} {
		stop := run("--flow-offload")
		if out, err := ns.Run("ip", "link", "add", device, "type", "veth", "peer", device+"-peer"); err != nil {
			t.Fatal(err, string(out))
		}
		if can {
			eventually(t, "the flowtable has the interface", func() bool {
				return strings.Contains(table(), `"`+device+`"`) || strings.Contains(table(), device+",") || strings.Contains(table(), device+" }")
			})
		}
		if out, err := ns.Run("ip", "link", "del", device); err != nil { // projectcalico/calico#13355
			t.Fatal(err, string(out))
		}
		if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
			t.Error("once the interface is gone:", stderr)
		}
		if out, err := ns.Run("sysctl", "-n", "net.netfilter.nf_conntrack_acct"); err != nil || strings.TrimSpace(string(out)) == "1" != can {
			t.Errorf("packets of connections are counted: %s, %v", out, err)
		}
		if got := strings.Contains(table(), "flow add @established"); got != can {
			t.Errorf("the kernel can have flowtables: %v, there is one: %v:\n%s", can, got, table())
		}
		stop()
		if text := plan("--flow-offload"); strings.Contains(text, "another ruleset") {
			t.Errorf("an agent with the flag would change what one with the flag has made:\n%s", text)
		}
		if text := plan(); strings.Contains(text, "another ruleset") != can {
			t.Errorf("an agent without the flag leaves the flowtable:\n%s", text)
		}
		run()()
		if strings.Contains(table(), "flow") || !strings.Contains(table(), "10.0.0.1") {
			t.Errorf("an agent without the flag leaves the flowtable, or loses the service:\n%s", table())
		}
	}
}
