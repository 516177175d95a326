package takeover

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/kernel/xtables"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// frontends stand for what the agent has in the kernel.
type frontends map[state.FrontendKey]bool

// Frontends implements driver.Lister.
func (f frontends) Frontends(context.Context) (map[state.FrontendKey]bool, error) { return f, nil }

// takeFrom loads rules into a namespace of its own, and returns a function that runs From there,
// and one that lists what nft shows.
func takeFrom(t *testing.T, rules string) (from func(Options) (string, error), ruleset func() string) {
	t.Helper()
	ns, run := emptyNamespace(t)
	run(rules)
	return fromIn(t, ns), func() string { return run("list", "ruleset") }
}

// takeFromIPTables is takeFrom with rules of a back end of iptables.
func takeFromIPTables(t *testing.T, backend, rules string) (from func(Options) (string, error)) {
	t.Helper()
	ns, _ := emptyNamespace(t)
	ns.Exec("sh", "-c", "/usr/sbin/iptables-"+backend+"-restore <<'E'\n"+rules+"E")
	return fromIn(t, ns)
}

// fromIn returns a function that runs From in a namespace, beside an agent that has programmed all
// unless one is given.
func fromIn(t *testing.T, ns *world.Host) func(Options) (string, error) {
	return func(o Options) (string, error) {
		var out bytes.Buffer
		o.Out, o.Socket, o.Node = &out, t.TempDir()+"/none", "node"
		o.Minor = func(error) bool { return false }
		if o.Sync == nil {
			o.Sync = inStep
		}
		if o.Kernel == nil {
			o.Kernel = frontends{}
		}
		err := ns.Do(func() error { return From(t.Context(), o) })
		return out.String(), err
	}
}

// emptyNamespace makes a namespace, and returns a function that runs nft in it.
func emptyNamespace(t *testing.T) (*world.Host, func(args ...string) string) {
	t.Helper()
	ns := world.NewHost(t, "node")
	return ns, func(args ...string) string { return ns.Exec("nft", args...) }
}

// twoServices is a table of nftables mode in small.
const twoServices = `
table ip kube-proxy {
	chain service-A { accept; }
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; comment "services";
		elements = { 10.96.0.1 . tcp . 443 comment "a/web:https" : goto service-A }; }
	map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict;
		elements = { 10.96.0.2 . udp . 53 comment "a/empty:dns" : drop }; }
	chain nat-prerouting { type nat hook prerouting priority -100; ip daddr . meta l4proto . th dport vmap @service-ips; }
}
`

func TestDifferencesStop(t *testing.T) {
	t.Parallel()
	ns, run := emptyNamespace(t)
	run(twoServices)
	from, ruleset := fromIn(t, ns), func() string { return run("list", "ruleset") }
	before := ruleset()
	ours := frontends{{Addr: netip.MustParseAddr("10.96.0.2"), Protocol: model.UDP, Port: 53}: false}
	out, err := from(Options{Kernel: ours})
	if !errors.Is(err, ErrStopped) || !strings.Contains(out, "TCP 10.96.0.1:443 (a/web:https) is served by kube-proxy and not by sluice") || strings.Contains(out, "a/empty") {
		t.Errorf("%v\n%s", err, out)
	}
	if ruleset() != before {
		t.Errorf("something was changed:\n%s", ruleset())
	}
	cluster := func(names ...string) func(context.Context) (map[string]bool, error) {
		return func(context.Context) (map[string]bool, error) {
			has := map[string]bool{}
			for _, n := range names {
				has[n] = true
			}
			return has, nil
		}
	}
	if out, err := from(Options{Kernel: ours, Services: cluster("default/kubernetes", "a/empty", "a/web")}); !errors.Is(err, ErrStopped) {
		t.Errorf("with all Services: %v\n%s", err, out)
	}
	out, err = from(Options{Kernel: ours, Services: cluster("a/empty")})
	if !errors.Is(err, ErrStopped) || !strings.Contains(out, "is served by kube-proxy and not by sluice") {
		t.Errorf("with the Services of another cluster: %v\n%s", err, out)
	}
	proxy := exec.Command("sleep", "1000")
	proxy.Args[0] = "kube-proxy"
	if err := ns.Do(proxy.Start); err != nil {
		t.Fatal(err)
	}
	out, err = from(Options{Kernel: ours, Services: cluster("default/kubernetes", "a/empty")})
	_ = proxy.Process.Kill() // it runs, or the test has failed
	_ = proxy.Wait()         // it was killed
	if !errors.Is(err, ErrStopped) || !strings.Contains(out, "is served by kube-proxy and not by sluice") {
		t.Errorf("without the Service, while kube-proxy runs: %v\n%s", err, out)
	}
	out, err = from(Options{Kernel: ours, Services: cluster("default/kubernetes", "a/empty")})
	if err != nil || !strings.Contains(out, "note    kube-proxy has TCP 10.96.0.1:443 (a/web:https) still, of a Service that the cluster does not have any more") || ruleset() != "" {
		t.Errorf("without the Service: %v\n%s", err, out)
	}
	out, err = from(Options{Kernel: ours, Force: true})
	if err != nil || strings.Contains(ruleset(), "kube-proxy") {
		t.Errorf("by force: %v\n%s", err, out)
	}
}

// notInStep is an agent that does not get it done.
func notInStep(context.Context) error { return errors.New("the API is away") }

func TestAgentNotInStepStops(t *testing.T) {
	t.Parallel()
	from, ruleset := takeFrom(t, twoServices)
	before := ruleset()
	out, err := from(Options{Sync: notInStep, Force: true, Wait: poll})
	if !errors.Is(err, ErrStopped) || !strings.Contains(err.Error(), "the API is away") || ruleset() != before {
		t.Errorf("%v\n%s", err, out)
	}
}

// What iptables-nft has, in pieces as an interrupted take-over leaves it; and a chain that somebody
// else uses.
func TestLeftoversGo(t *testing.T) {
	t.Parallel()
	const others = `table ip nat {
	chain KUBE-MARK-MASQ {
		meta mark set meta mark | 0x00004000
	}

	chain KUBE-POSTROUTING {
		meta mark & 0x00004000 == 0x00000000 return
		masquerade
	}

	chain CNI-HOSTPORT-SETMARK {
		jump KUBE-MARK-MASQ
	}

	chain POSTROUTING {
		type nat hook postrouting priority srcnat; policy accept;
		jump KUBE-POSTROUTING
	}
}
`
	_, alone := takeFrom(t, others+"\n")
	want := alone()
	from, ruleset := takeFrom(t, others+`
table ip nat { chain KUBE-SVC-A { jump KUBE-MARK-MASQ; }
	chain KUBE-SERVICES { ip daddr 10.96.0.1 tcp dport 443 jump KUBE-SVC-A; }
}
table ip6 filter { chain KUBE-FORWARD { accept; }
	chain FORWARD { type filter hook forward priority 0; policy drop; jump KUBE-FORWARD; }
}
table ip6 kube-proxy {
	chain services { accept; }
}
`)
	out, err := from(Options{})
	if !errors.Is(err, ErrStopped) || !strings.Contains(out, "chain FORWARD of family ip6 refuses") || !strings.Contains(out, "TCP 10.96.0.1:443 is served by kube-proxy") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = from(Options{Force: true})
	if err != nil || !strings.Contains(out, "chain KUBE-MARK-MASQ stays: chain CNI-HOSTPORT-SETMARK") {
		t.Errorf("%v\n%s", err, out)
	}
	got, _, _ := strings.Cut(ruleset(), "table ip6 filter")
	if got != want || strings.Contains(ruleset(), "KUBE-FORWARD") || strings.Contains(ruleset(), "kube-proxy") {
		t.Errorf("left:\n%s\nwant:\n%s", ruleset(), want)
	}
	if out, err = from(Options{}); err != nil || !strings.Contains(out, "nothing to do") {
		t.Errorf("a second time: %v\n%s", err, out)
	}
}

func TestDryRunChangesNothing(t *testing.T) {
	t.Parallel()
	from, ruleset := takeFrom(t, twoServices)
	before := ruleset()
	out, err := from(Options{DryRun: true, Force: true})
	if err != nil || !strings.Contains(out, "would   remove nftables: table ip kube-proxy") || ruleset() != before {
		t.Errorf("%v\n%s", err, out)
	}
}

// Whichever back end of iptables has the rules, the same is read from them.
func TestBackendsAgree(t *testing.T) {
	t.Parallel()
	for _, family := range []struct{ name, program, vip, refuse string }{
		{"ip", "iptables", "10.96.0.10/32", "icmp-port-unreachable"}, {"ip6", "ip6tables", "fd00:10:96::a/128", "icmp6-port-unreachable"},
	} {
		text := strings.NewReplacer("VIP", family.vip, "REFUSE", family.refuse).Replace(rulesOfBoth)
		var want []Frontend
		for table := range strings.SplitSeq(text, "COMMIT\n") {
			name, _, _ := strings.Cut(strings.TrimPrefix(table, "*"), "\n")
			want = append(want, readTable(family.name, name, xtables.Parse(table)).frontends...)
		}
		if len(want) != 8 {
			t.Fatalf("%s: %v", family.name, want)
		}
		want = frontendsOf([]footprint{{frontends: want}})
		for backend, find := range map[string]func(context.Context) ([]footprint, error){"nft": findNftables, "legacy": findLegacy} {
			ns, _ := emptyNamespace(t)
			ns.Exec("sh", "-c", "/usr/sbin/"+family.program+"-"+backend+"-restore <<'E'\n"+text+"E")
			var footprints []footprint
			ns.In(func() (err error) {
				footprints, err = find(t.Context())
				return err
			})
			if d := cmp.Diff(want, frontendsOf(footprints), compareAddrs); d != "" {
				t.Errorf("%s, %s:\n%s", family.name, backend, d)
			}
		}
	}
}

const rulesOfBoth = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-SVC-A - [0:0]
-A KUBE-SERVICES -d VIP -p udp -m comment --comment "kube-system/kube-dns:dns cluster IP" -m udp --dport 53 -j KUBE-SVC-A
-A KUBE-SERVICES -d VIP -p tcp -m comment --comment "a/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-A
-A KUBE-SERVICES -d VIP -p sctp -m comment --comment "a/web cluster IP" -m sctp --dport 5000 -j KUBE-SVC-A
-A KUBE-SERVICES -m comment --comment "node ports" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -p tcp -m comment --comment "a/web:http" -m tcp --dport 30080 -j KUBE-SVC-A
-A KUBE-NODEPORTS -p udp -m comment --comment "a/web:udp" -m udp --dport 30081 -j KUBE-SVC-A
-A KUBE-NODEPORTS -p sctp -m comment --comment "a/web:sctp" -m sctp --dport 30082 -j KUBE-SVC-A
COMMIT
*filter
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
-A KUBE-SERVICES -d VIP -p tcp -m comment --comment "a/empty has no endpoints" -m tcp --dport 81 -j REJECT --reject-with REFUSE
-A KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment "a/empty has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30083 -j REJECT --reject-with REFUSE
COMMIT
`
