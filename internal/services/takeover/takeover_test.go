package takeover_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/services/takeover"
	"sluice.dev/sluice/test/world"
)

// foreign are rules of others, some with names like kube-proxy's.
const foreign = `
table ip kube-proxy-other {
	chain c {
		type filter hook input priority 5;
		counter accept
	}
}
table inet firewall {
	chain f {
		type filter hook forward priority -5; policy accept;
		ip saddr 192.0.2.7 drop
	}
}
`

// TestTakeover moves nodes from the real kube-proxy to the agent and back, under traffic, in each
// of its modes but IPVS; in iptables mode also to an agent whose rules are in the same variant,
// beside kube-proxy's own.
func TestTakeover(t *testing.T) {
	a := newAPI(t)
	t.Run("what a user is told to type", func(t *testing.T) {
		t.Parallel()
		a.stopLines(t)
	})
	for _, m := range []struct {
		name, mode, backend string
		agent               []string
	}{
		{"nftables", "nftables", "", nil}, {"iptables-nft", "iptables", "nft", nil}, {"iptables-legacy", "iptables", "legacy", nil},
		{"iptables-nft to iptables", "iptables", "nft", []string{"--mode", "iptables"}},
		{"iptables-legacy to iptables", "iptables", "legacy", []string{"--mode", "iptables"}},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			thereAndBack(t, a, m.mode, m.backend, m.agent...)
		})
	}
}

func thereAndBack(t *testing.T, a *api, mode, backend string, flags ...string) {
	c := newCluster(t, a)
	for name, ns := range c.backends {
		serve(t, name, ns)
	}
	c.addForeign(backend)
	before := c.rules(backend)
	proxy := c.startProxy(mode, backend)
	c.served()
	sticky := c.stickyClients()
	at := sticky.where()
	tr := startTraffic(c)

	out, err := c.takeover("--from", "kube-proxy", "--dry-run")
	if (err != nil) != (mode == "iptables") || !strings.Contains(out, "no agent answers") || !strings.Contains(out, "would   wait until kube-proxy (process") || !strings.Contains(out, "would   remove") {
		t.Errorf("dry run without an agent: %v\n%s", err, out)
	}
	given := giveUp(out)
	if out, err = c.takeover("--from", "kube-proxy", "--dry-run", given); err != nil {
		t.Errorf("dry run without an agent, with %s: %v\n%s", given, err, out)
	}
	agent := c.startAgent(flags...)
	const its = "30999 of default/balanced" // kube-proxy's still
	if out := c.onNode(c.sluice, "status", "--socket", c.socket()); strings.Contains(out, "PROBLEM") || !strings.Contains(out, its) {
		t.Errorf("status while both run:\n%s", out)
	}
	if out := c.onNode(c.sluice, "sync", "--socket", c.socket()); out != "" {
		t.Errorf("sync while both run:\n%s", out)
	}
	if ours := strings.Contains(c.rules(backend), ownRules[len(flags) > 0]); !ours {
		t.Errorf("the agent has no %s there", ownRules[len(flags) > 0])
	}
	sticky.check(at)
	out, err = c.takeover("--from", "kube-proxy", "--force")
	if err == nil || !strings.Contains(out, "stop it\n") || !strings.Contains(out, "kube-proxy (process") {
		t.Errorf("took over from a kube-proxy that runs, or did not say how to stop it: %v\n%s", err, out)
	}
	out, err = c.runOnNode("unshare", "--pid", "--fork", "--mount-proc", c.sluice, "takeover", "--socket", c.socket(), "--from", "kube-proxy", "--force")
	if err == nil || !strings.Contains(out, "a program in another pid namespace") {
		t.Errorf("in a pod, kube-proxy is not seen: %v\n%s", err, out)
	}
	if mode == "iptables" {
		if out, err = c.takeover("--from", "kube-proxy", "--dry-run"); err == nil || !strings.Contains(out, "node ports on 10.244.1.1") || !strings.Contains(out, ", 127.0.0.1, ") {
			t.Errorf("node ports on other addresses are not told of: %v\n%s", err, out)
		}
	}
	elsewhere := fmt.Sprintf("127.0.0.0/8,10.244.0.0/16,%s/32,fd00:10:244::/48,%s/128", c.link, addr6(c.link)) // where only kube-proxy in iptables mode has node ports
	out, err = c.takeover("--from", "kube-proxy", "--dry-run", "--give-up", elsewhere)
	if err != nil || strings.Contains(out, "at fault") {
		t.Errorf("dry run: %v\n%s", err, out)
	}
	if out, err := c.takeover("--from", "kube-proxy", "--dry-run", given); err != nil {
		t.Errorf("dry run with what was named without an agent, %s: %v\n%s", given, err, out)
	}
	t.Logf("dry run:\n%s", out)
	proxy.stop()
	out, err = c.takeover("--from", "kube-proxy", "--wait", "10s", "--give-up", elsewhere)
	t.Logf("takeover --from kube-proxy:\n%s", out)
	if err != nil {
		t.Fatal(err)
	}
	sticky.check(at)
	eventually(t, "the health check node port is the agent's", func() string {
		if out := c.onNode(c.sluice, "status", "--socket", c.socket()); strings.Contains(out, its) || strings.Contains(out, "PROBLEM") {
			return out
		}
		return ""
	})
	if after := withoutSluice(c.rules(backend)); after != before {
		t.Errorf("rules of others, before and after:\n%s", cmp.Diff(strings.Split(before, "\n"), strings.Split(after, "\n")))
	}
	if out, err = c.takeover("--from", "kube-proxy"); err != nil || !strings.Contains(out, "nothing to do") {
		t.Errorf("a second time: %v\n%s", err, out)
	}

	proxy = c.startProxy(mode, backend)
	if out, err = c.takeover("--to", "kube-proxy"); err == nil || !strings.Contains(out, "an agent answers") {
		t.Errorf("gave back while the agent runs: %v\n%s", err, out)
	}
	out, err = c.runOnNode(c.sluice, "takeover", "--socket", c.socket()+"-other", "--to", "kube-proxy")
	if err == nil || !strings.Contains(out, "with another --socket") {
		t.Errorf("gave back while an agent with another socket runs: %v\n%s", err, out)
	}
	agent.stop()
	out, err = c.takeover("--to", "kube-proxy", "--wait", "30s")
	t.Logf("takeover --to kube-proxy:\n%s", out)
	if err != nil {
		t.Fatal(err)
	}
	if left := strings.ToLower(c.rules(backend) + c.onNode("ipset", "list", "-n")); strings.Contains(left, "sluice") {
		t.Errorf("something of ours is still there:\n%s", left)
	}
	if out, err = c.takeover("--to", "kube-proxy"); err != nil || !strings.Contains(out, "nothing to do") {
		t.Errorf("a second time: %v\n%s", err, out)
	}
	tr.check()
	proxy.stop()
}

// stopLines has the real controllers carry out what a user is told to type: the DaemonSet leaves
// the node, and no other.
func (a *api) stopLines(t *testing.T) {
	const node = "leaving"
	a.apply(t, `
apiVersion: v1
kind: Node
metadata: {name: leaving}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system}
spec:
  selector: {matchLabels: {app: kube-proxy}}
  template:
    metadata: {labels: {app: kube-proxy}}
    spec: {tolerations: [{operator: Exists}], containers: [{name: kube-proxy, image: kube-proxy}]}
`)
	wanted := func(n string) {
		eventually(t, "number of nodes", func() string {
			got := a.kubectl(t, "-n", "kube-system", "get", "daemonset", "kube-proxy", "-o", "jsonpath={.status.desiredNumberScheduled} {.status.observedGeneration}={.metadata.generation}")
			count, generations, _ := strings.Cut(got, " ")
			seen, last, _ := strings.Cut(generations, "=")
			if count != n || seen != last {
				return got
			}
			return ""
		})
	}
	wanted("2")
	for line := range strings.Lines(takeover.StopDaemonSet(node)) {
		if args, ok := strings.CutPrefix(line, "kubectl "); ok {
			out, err := a.host.Run("sh", "-c", a.Bin+"/kubectl --kubeconfig "+a.Admin()+" "+args)
			if err != nil {
				t.Fatalf("%s%v\n%s", line, err, out)
			}
		}
	}
	wanted("1")
}

// TestLossIsSeen has packets lost: the traffic of these tests tells of each.
func TestLossIsSeen(t *testing.T) {
	t.Parallel()
	ns := world.NewHost(t, "loss")
	serve(t, "one", ns)
	rules := func(text string) {
		t.Helper()
		ns.Exec("sh", "-c", "nft -f - <<'E'\nflush ruleset\ntable inet t { chain c { type filter hook input priority 0; tcp dport 8080 "+text+" drop; "+
			"tcp dport 9 "+text+" drop; tcp dport 9 reject with icmpx port-unreachable; }; }\nE")
	}
	for text, want := range map[string]int{"tcp flags == syn numgen inc mod 2 == 0": 1, "tcp flags == fin": 0} {
		rules(text)
		conn, err := dial(ns, "tcp4", "127.0.0.1:8080", answerLimit)
		if err != nil {
			t.Fatal(err)
		}
		if n := lost(conn); n != want {
			t.Errorf("%s: %d packets of a connection were lost, want %d", text, n, want)
		}
		if n, err := refuse(ns, "tcp4", "127.0.0.1:9"); n != want || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %d attempts were not refused, want %d: %v", text, n, want, err)
		}
		rules("tcp flags psh numgen inc mod 2 == 0")
		if name, _, err := ask(conn, answerLimit); name != "one" || err != nil || lost(conn) != want+1 {
			t.Errorf("%s, and one on the connection: %d lost, want %d; %s %v", text, lost(conn), want+1, name, err)
		}
		_ = conn.Close()
	}
	// The agent may take over between two attempts.
	ns.Exec("sh", "-c", "nft -f - <<'E'\nflush ruleset\ntable inet t { chain c { type filter hook input priority 0; "+
		"tcp dport 9 numgen inc mod 2 == 0 reject with icmpx port-unreachable; tcp dport 9 reject with tcp reset; }; }\nE")
	for range 4 {
		if n, err := refuse(ns, "tcp4", "127.0.0.1:9"); n != 0 || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("refused by ICMP and by TCP: %d attempts were not refused: %v", n, err)
		}
	}
}

// served waits until kube-proxy has programmed the services.
func (c *cluster) served() {
	c.t.Helper()
	for _, w := range c.ways() {
		eventually(c.t, w.what, func() string {
			conn, err := dial(w.from, w.network, w.to, time.Second) // before it is programmed, nobody answers
			if err == nil {
				_, _, err = ask(conn, time.Second)
				_ = conn.Close()
			}
			if err != nil {
				return err.Error()
			}
			return ""
		})
	}
}

// addForeign adds rules of others, the kubelet's among them.
func (c *cluster) addForeign(backend string) {
	c.t.Helper()
	c.onNode("sh", "-c", "nft -f - <<'E'\n"+foreign+"E")
	if backend == "" {
		backend = "nft"
	}
	for _, family := range []string{"", "6"} {
		restore := "/usr/sbin/ip" + family + "tables-" + backend + "-restore"
		c.onNode("sh", "-c", restore+" --noflush <<'E'\n"+foreignTables+kubeletRule[family]+"COMMIT\nE")
	}
}

// kubeletRule is the kubelet's in KUBE-FIREWALL. kube-proxy in iptables mode makes that of IPv4,
// too, and leaves it.
var kubeletRule = map[string]string{
	"":  `-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP` + "\n",
	"6": "-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP\n",
}

const foreignTables = `*mangle
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-MARK-DROP - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
-A PREROUTING -m comment --comment "a rule, of \"somebody\" else" -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name" -m multiport --dports 12345 -j RETURN
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-ROUTER-FORWARD - [0:0]
:KUBE-POD-FW-ABCDEFGHIJKLMNOP - [0:0]
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
-A FORWARD -m comment --comment "of kube-router" -j KUBE-ROUTER-FORWARD
-A KUBE-ROUTER-FORWARD -j KUBE-POD-FW-ABCDEFGHIJKLMNOP
`

// rules are all of the node's, without their counters and empty lines.
func (c *cluster) rules(backend string) string {
	c.t.Helper()
	text := strings.ReplaceAll(c.onNode("nft", "--stateless", "list", "ruleset"), "\n\n", "\n")
	if backend == "legacy" {
		for _, program := range []string{"iptables-legacy-save", "ip6tables-legacy-save"} {
			for line := range strings.Lines(c.onNode("/usr/sbin/" + program)) {
				if !strings.HasPrefix(line, "#") {
					head, _, _ := strings.Cut(line, " [")
					text += strings.TrimSpace(head) + "\n"
				}
			}
		}
	}
	return text
}

// ownRules is what the agent's rules are known by: in iptables mode, and otherwise.
var ownRules = map[bool]string{true: "SLUICE-", false: "table inet sluice {"}

// withoutSluice leaves out the agent's table, and its rules and chains of iptables.
func withoutSluice(rules string) string {
	if head, rest, ok := strings.Cut(rules, ownRules[false]); ok {
		_, tail, _ := strings.Cut(rest, "\n}\n")
		rules = head + tail
	}
	var b strings.Builder
	inside := false // a chain of ours, as nft lists it
	for line := range strings.Lines(rules) {
		inside = inside || strings.HasPrefix(line, "\tchain SLUICE-")
		if !inside && !strings.Contains(line, "SLUICE-") {
			b.WriteString(line)
		}
		inside = inside && line != "\t}\n"
	}
	return b.String()
}
