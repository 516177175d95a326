package verdict

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
)

// way is a path to a pod that says a text of it.
func way(o Outcome, n int, text string) Path {
	node, pod := fmt.Sprint("node-", n), podRef(np(fmt.Sprint("web-", n)).Name)
	return Path{
		To: Party{Address: netip.AddrFrom4([4]byte{10, 1, byte(n), 1}), Port: 80, Object: pod, Node: node}, Outcome: o,
		Steps: []Step{{Node: node, Stage: Ingress, Of: pod, Verdict: Verdict{Outcome: o}, Text: text}},
		Notes: []string{fmt.Sprintf("node %s sees 192.168.0.%d, an address of it", node, n)},
	}
}

// asked is an answer for a client.
func asked(n int, o Outcome, paths ...Path) Answer {
	return Answer{
		From: Party{Address: netip.AddrFrom4([4]byte{10, 2, 0, byte(n)}), Object: podRef(np(fmt.Sprint("client-", n)).Name)}, Protocol: "TCP", Outcome: o, Paths: paths,
		To: Party{Address: addr("10.96.0.1"), Port: 80, Object: model.Ref{Kind: model.ServiceKind, Name: np("web").Name}},
	}
}

func TestText(t *testing.T) {
	var many []Answer
	for i := range 30 {
		many = append(many, asked(i, Allowed, way(Allowed, i, "fine")))
	}
	for name, tt := range map[string]struct {
		answers []Answer
		lines   int
		want    string
		folded  bool
	}{
		"one": {[]Answer{asked(1, Allowed, way(Allowed, 1, "fine"))}, 9, `
allowed: 10.2.0.1 (pod shop/client-1) -> 10.96.0.1:80 (service shop/web), TCP 80
  node-1  ingress  allowed  shop/web-1  fine
  to 10.1.1.1:80 (pod shop/web-1): allowed
    note: node node-1 sees 192.168.0.1, an address of it
`, false},
		"ways alike": {[]Answer{asked(1, Denied, way(Allowed, 1, "fine"), way(Denied, 2, "no"), way(Allowed, 3, "fine"), way(Denied, 4, "no"), way(Denied, 5, "no"), way(Denied, 6, "no"))}, 20, `
4 of 6 ways are denied: 10.2.0.1 (pod shop/client-1) -> 10.96.0.1:80 (service shop/web), TCP 80
  by shop/web-2 and 3 more, ingress: no
  by node node-2, to 10.1.2.1:80 (pod shop/web-2), and 3 ways like it: denied
    node-2  ingress  denied  shop/web-2
    note: node node-2 sees 192.168.0.2, an address of it
  by node node-1, to 10.1.1.1:80 (pod shop/web-1), and 1 way like it: allowed
    node-1  ingress  allowed  shop/web-1  fine
    note: node node-1 sees 192.168.0.1, an address of it
`, true},
		"clients alike": {append(many[:29:29], asked(30, Denied, way(Denied, 30, "no"))), 20, `
of 30 connections, 1 is denied, 29 are allowed

denied: 10.2.0.30 (pod shop/client-30) -> 10.96.0.1:80 (service shop/web), TCP 80
  by shop/web-30, ingress: no
  node-30  ingress  denied  shop/web-30
  to 10.1.30.1:80 (pod shop/web-30): denied
    note: node node-30 sees 192.168.0.30, an address of it

allowed: 10.2.0.0 (pod shop/client-0) -> 10.96.0.1:80 (service shop/web), TCP 80
  in the same way: 28 more connections, from shop/client-1, shop/client-2, shop/client-3 and 25 more
  node-0  ingress  allowed  shop/web-0  fine
  to 10.1.0.1:80 (pod shop/web-0): allowed
    note: node node-0 sees 192.168.0.0, an address of it
`, true},
		"two alike": {many[:2], 20, `
allowed: 10.2.0.0 (pod shop/client-0) -> 10.96.0.1:80 (service shop/web), TCP 80
  in the same way: 10.2.0.1 (pod shop/client-1) -> 10.96.0.1:80 (service shop/web)
  node-0  ingress  allowed  shop/web-0  fine
  to 10.1.0.1:80 (pod shop/web-0): allowed
    note: node node-0 sees 192.168.0.0, an address of it
`, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, folded := Text(tt.answers, tt.lines)
			if "\n"+got != tt.want || folded != tt.folded {
				t.Errorf("folded %v, want %v; got\n%s\nwant%s", folded, tt.folded, got, tt.want)
			}
		})
	}
}

// Whatever there is to say, it fits in the lines, and the first say what is denied; of all nothing
// is left out.
func TestTextFits(t *testing.T) {
	for _, differ := range []int{1, 2, 7, 60} {
		for _, clients := range []int{1, 3, 30} {
			var answers []Answer
			for c := range clients {
				a := asked(c, Denied)
				for i := range differ {
					a.Paths = append(a.Paths, way(Allowed, i, fmt.Sprint("reason ", c, i)), way(Denied, i, fmt.Sprint("objection ", c, i)))
				}
				answers = append(answers, a)
			}
			for _, lines := range []int{1, 5, 12, 25} {
				text, folded := Text(answers, lines)
				n := strings.Count(text, "\n")
				if n > lines || differ*clients > 5 && !folded || !strings.Contains(strings.SplitAfter(text, "\n")[0], "denied") {
					t.Errorf("%d ways, %d clients: %d lines of %d, folded %v:\n%s", differ, clients, n, lines, folded, text)
				}
			}
			if all := TextOfAll(answers); strings.Count(all, "  reason ") != clients*differ || strings.Count(all, "\n    note: ") != clients*differ*2 {
				t.Errorf("%d ways, %d clients: something is missing of all", differ, clients)
			}
		}
	}
}

// Reasons that differ in more than names are not one.
func TestTextKeepsApart(t *testing.T) {
	host := func(name, policy string) Path {
		p := way(Denied, 1, "")
		p.Steps[0].Of, p.Steps[0].Stage = model.Ref{Kind: model.HostEndpointKind, Name: model.Name{Name: name}}, HostInput
		p.Steps[0].Decider = Decider{Tier: "default", Policy: np(policy), Rule: "ingress[0]"}
		return p
	}
	missing := way(Denied, 2, "no")
	missing.Missing = []string{"an ingress rule that allows TCP 80"}
	near := way(Denied, 2, "no")
	near.Nearest = []Near{{Policy: np("db"), Rule: "ingress[0]", Lacks: []string{"wants 192.0.2.0/24; this is 10.2.0.1"}}}
	longer := way(Denied, 2, "no")
	longer.Steps = append([]Step{{Stage: PreDNAT, Verdict: Verdict{Outcome: Allowed}, Text: "fine"}}, longer.Steps...)
	hidden := way(Denied, 2, "no")
	hidden.HiddenClient = &HiddenClient{Client: addr("10.2.0.1"), Otherwise: Allowed}
	for i, tt := range []struct {
		a, b  Path
		alike bool
	}{
		{way(Denied, 1, "no"), way(Denied, 2, "no"), true},
		{way(Denied, 1, "no"), way(Denied, 2, "never"), false},
		{way(Denied, 1, "no"), way(Allowed, 2, "no"), false},
		{way(Denied, 1, "not 192.0.2.0/24"), way(Denied, 2, "not 198.51.100.0/24"), false},
		{way(Denied, 1, "node-1 (10.1.1.1:80)"), way(Denied, 2, "node-2 (10.1.2.1:80)"), true},
		{host("a-eth0", "all"), host("b-eth0", "all"), true},
		{host("a-eth0", "all"), host("b-eth0", "some"), false},
		{way(Denied, 1, "no"), missing, false},
		{way(Denied, 1, "no"), near, false},
		{way(Denied, 1, "no"), longer, true},
		{way(Denied, 1, "no"), hidden, false},
	} {
		ways := asked(1, Denied, tt.a, tt.b).ways()
		if alike := len(ways) == 1; alike != tt.alike {
			t.Errorf("%d: alike %v, want %v", i, alike, tt.alike)
		}
	}
}
