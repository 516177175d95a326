package iptables

import (
	"bytes"
	"context"
	"errors"
	"log"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/kernel/xtables"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/netns"
)

func run(t testing.TB, d *Driver, name string, args ...string) string {
	t.Helper()
	out, err := (&netns.NS{NS: d.ns}).Run(name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func eachVariant(t *testing.T, test func(*testing.T, xtables.Variant)) {
	for _, v := range []xtables.Variant{xtables.Legacy, xtables.NFTables} {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			test(t, v)
		})
	}
}

func adopt(t testing.TB, d *Driver, s *state.State) driver.Plan {
	t.Helper()
	p, err := d.Adopt(t.Context(), s, driver.Keep{})
	return apply(t, p, err)
}

func TestRequirements(t *testing.T) {
	t.Parallel()
	if err := probe.Missing(t.Context(), Requirements); err != nil {
		t.Error(err)
	}
	eachVariant(t, func(t *testing.T, v xtables.Variant) {
		d := inside(t, Options{Variant: v, Options: driver.Options{Fabric: true}})
		if err := d.Probe(t.Context()); err != nil {
			t.Error(err)
		}
		if out := run(t, d, "ipset", "list", "-n"); out != "" {
			t.Errorf("a probe leaves sets: %s", out)
		}
	})
	missing := requirement("nonsense", "9.9", "xt_nonsense", "nat PREROUTING -m nonsense -j RETURN")
	if err := missing.Met(t.Context()); !errors.Is(err, probe.ErrNotSupported) || !strings.Contains(err.Error(), "xt_nonsense") {
		t.Errorf("a match that is not there: %v", err)
	}
}

// What others have is left as it is, with its counters, whatever we do beside it.
func TestOthers(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v xtables.Variant) {
		d := inside(t, Options{Variant: v})
		program := "iptables-" + string(v)
		run(t, d, program, "-t", "nat", "-N", "OTHER")
		run(t, d, program, "-t", "nat", "-A", "PREROUTING", "-c", "7", "700", "-p", "udp", "-j", "OTHER")
		run(t, d, program, "-t", "nat", "-A", "OTHER", "-c", "5", "500", "-j", "RETURN")
		run(t, d, program, "-A", "FORWARD", "-c", "3", "300", "-j", "ACCEPT")
		run(t, d, "ipset", "create", "OTHER", "hash:ip")
		others := func() (lines []string) {
			for line := range strings.Lines(run(t, d, program+"-save", "-c")) {
				if !strings.Contains(line, prefix) && !strings.HasPrefix(line, "#") {
					lines = append(lines, line)
				}
			}
			return lines
		}
		before := others()
		s := services(30, 3)
		adopt(t, d, s)
		k, f := web(3, 4)
		p, err := d.Update(t.Context(), state.Delta{Services: state.ServicesDelta{Frontends: map[state.FrontendKey]*state.Frontend{k: f}}})
		apply(t, p, err)
		if err := d.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		after := others()
		for _, line := range before {
			if !slices.Contains(after, line) {
				t.Errorf("is gone: %s", line)
			}
		}
		if out := run(t, d, "ipset", "list", "-n"); out != "OTHER\n" {
			t.Errorf("sets: %s", out)
		}
		if out := run(t, d, program+"-save"); strings.Contains(out, prefix) {
			t.Errorf("is left: %s", out)
		}
	})
}

// Tailscale writes rules into the tables of iptables that iptables cannot read, and of a table with
// them it shows nothing, with or without an error. That is no table without our rules: nothing is
// written once more, what was in force stays, and the error says what to do. Without a choice of
// variant, the other one is taken (projectcalico/calico#13579).
func TestRulesThatIptablesCannotRead(t *testing.T) {
	t.Parallel()
	const mark, sets = "meta mark & 0x00ff0000 == 0x00040000 counter ", "meta mark set meta mark & 0xff00ffff | 0x00040000"
	for name, rule := range map[string]string{
		"the table is left out": "add table ip nat\nadd chain ip nat ts-postrouting\nadd rule ip nat ts-postrouting " + mark + "masquerade",
		"the program fails":     "add table ip filter\nadd chain ip filter ts-forward\nadd rule ip filter ts-forward counter " + sets,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := inside(t, Options{Variant: xtables.NFTables})
			s := services(30, 3)
			adopt(t, d, s)
			run(t, d, "nft", rule)
			before := run(t, d, "nft", "-s", "list", "ruleset")
			if p, err := d.Adopt(t.Context(), s, driver.Keep{}); !errors.Is(err, errUnreadable) {
				t.Errorf("adopted: %v\n%s", err, p)
			}
			if after := run(t, d, "nft", "-s", "list", "ruleset"); after != before {
				t.Errorf("the kernel has\n%s\nand had\n%s", after, before)
			}
			if err := d.Purge(t.Context()); !errors.Is(err, errUnreadable) {
				t.Errorf("purged: %v", err)
			}

			d = inside(t, Options{})
			run(t, d, "nft", rule)
			if v, err := d.variant(t.Context()); v != xtables.Legacy || err != nil {
				t.Errorf("variant %s is chosen: %v", v, err)
			}
			adopt(t, d, s)
			if p := adopt(t, d, s); p.Len() > 0 {
				t.Errorf("adopted again:\n%s", p)
			}
		})
	}
}

// What others do to our rules and sets is undone by an adoption, which writes that alone.
func TestTampered(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v xtables.Variant) {
		d := inside(t, Options{Variant: v})
		s := services(30, 3)
		adopt(t, d, s)
		program := "iptables-" + string(v)
		tampered := func(want bool) {
			t.Helper()
			d.compared = time.Time{}
			if got, err := d.Tampered(t.Context()); got != want || err != nil {
				t.Errorf("tampered: %v, %v", got, err)
			}
		}
		tampered(false)
		run(t, d, program, "-t", "nat", "-F", servicesChain)
		tampered(true)
		run(t, d, program, "-t", "nat", "-D", "PREROUTING", "-j", servicesChain)
		run(t, d, program, "-t", "nat", "-N", "SLUICE-F-STALE")
		run(t, d, "ipset", "del", "SLUICE-4-FRONTENDS", "10.96.0.1,tcp:80")
		run(t, d, "ipset", "add", "SLUICE-4-MASQUERADE", "10.96.0.1,tcp:80")
		undone := adopt(t, d, s)
		want := []string{"add SLUICE-4-FRONTENDS 10.96.0.1,tcp:80", ":SLUICE-SERVICES - [0:0]", "-I PREROUTING 1 -j SLUICE-SERVICES", "-X SLUICE-F-STALE", "del SLUICE-4-MASQUERADE 10.96.0.1,tcp:80"}
		for _, line := range want {
			if !strings.Contains(undone.String(), line+"\n") {
				t.Errorf("the plan lacks %s:\n%s", line, undone)
			}
		}
		tampered(false)
		if p := adopt(t, d, s); p.Len() > 0 {
			t.Errorf("is not right yet:\n%s", p)
		}
		run(t, d, "ip6tables-"+string(v), "-F", "FORWARD")
		k, f := web(3, 4)
		p, err := d.Update(t.Context(), state.Delta{Services: state.ServicesDelta{Frontends: map[state.FrontendKey]*state.Frontend{k: f}}})
		apply(t, p, err)
		tampered(true)
	})
}

// The lock is waited for as long as was asked for, and then named. Where there can be none, that is
// said, and no object is to blame for it.
func TestLock(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "xtables.lock")
	t.Setenv("XTABLES_LOCKFILE", lock)
	f, err := os.Create(lock)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	d := inside(t, Options{Variant: xtables.Legacy, LockWait: time.Second})
	fails := func(locked bool, says string) {
		t.Helper()
		p, err := d.Adopt(t.Context(), services(1, 1), driver.Keep{})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Apply(t.Context()); errors.Is(err, driver.ErrLocked) != locked || err == nil || !strings.Contains(err.Error(), says) || len(d.SetAside()) > 0 {
			t.Errorf("it ends with %v, and sets aside %v", err, d.SetAside())
		}
	}
	fails(true, "after 1s")
	if err := d.Probe(t.Context()); err != nil {
		t.Errorf("the kernel is said to lack something: %v", err)
	}
	t.Run("others", func(t *testing.T) {
		answersWhileItWaits(t, inside(t, Options{Variant: xtables.Legacy, LockWait: time.Minute}))
	})
	t.Setenv("XTABLES_LOCKFILE", lock+"/none")
	fails(false, "can't open lock file "+lock+"/none")
	t.Setenv("XTABLES_LOCKFILE", lock)
	if err := unix.Flock(int(f.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	adopt(t, d, services(1, 1))
}

// answersWhileItWaits sees that others are answered while a change waits for the lock of xtables.
func answersWhileItWaits(t *testing.T, d driver.Driver) {
	t.Helper()
	p, err := d.Adopt(t.Context(), services(1, 1), driver.Keep{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- p.Apply(watched{ctx, sync.OnceFunc(func() { close(waits) })}) }()
	<-waits
	d.SetAside()
	if len(ended) > 0 {
		t.Error("nobody was answered before the change had ended")
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("a change that is given up ends with %v", err)
	}
}

// watched is a context that tells when somebody waits for its end.
type watched struct {
	context.Context
	waits func()
}

func (w watched) Done() <-chan struct{} {
	w.waits()
	return w.Context.Done()
}

// A set of another type under a name of ours is told and left alone.
func TestForeignSet(t *testing.T) {
	t.Parallel()
	d := inside(t, Options{Variant: xtables.Legacy})
	run(t, d, "ipset", "create", "SLUICE-4-FRONTENDS", "hash:ip")
	if _, err := d.Adopt(t.Context(), services(1, 1), driver.Keep{}); err == nil || !strings.Contains(err.Error(), "SLUICE-4-FRONTENDS is another program's") {
		t.Errorf("a set of another type: %v", err)
	}
	if err := d.Purge(t.Context()); err != nil {
		t.Error(err)
	}
	if out := run(t, d, "ipset", "list", "-n"); out != "SLUICE-4-FRONTENDS\n" {
		t.Errorf("sets: %s", out)
	}
}

// A chain under a name of ours is another program's where no set of ours is: it is told and left
// alone, as sets of all types are, of which nothing is printed.
func TestForeignChain(t *testing.T) {
	var printed bytes.Buffer
	log.SetOutput(&printed)
	defer log.SetOutput(os.Stderr)
	for _, v := range []xtables.Variant{xtables.Legacy, xtables.NFTables} {
		d := inside(t, Options{Variant: v})
		for _, program := range []string{"iptables-" + string(v), "ip6tables-" + string(v)} {
			run(t, d, program, "-N", "SLUICE-FORWARD")
			run(t, d, program, "-A", "SLUICE-FORWARD", "-p", "udp", "-j", "DROP")
			run(t, d, program, "-A", "FORWARD", "-j", "SLUICE-FORWARD")
		}
		for _, s := range []string{"a hash:net,iface", "b bitmap:port range 1-9", "c list:set", "d bitmap:ip,mac range 10.0.0.0/24", "e hash:ip skbinfo counters comment", "f hash:ip,port bucketsize 4 initval 0x5", "SLUICE-5-X hash:ip", "SLUICE-4-FRONTENDS bitmap:port range 1-9"} {
			run(t, d, "ipset", append([]string{"create"}, strings.Fields(s)...)...)
		}
		for _, e := range []string{"a 10.0.0.0/8,eth0", "b 7", "c a", "d 10.0.0.1,02:00:00:00:00:01", "e 10.0.0.1 skbmark 0x1", "SLUICE-4-FRONTENDS 5"} {
			run(t, d, "ipset", append([]string{"add"}, strings.Fields(e)...)...)
		}
		all := func() string {
			var text string
			for _, args := range [][]string{{"iptables-" + string(v) + "-save"}, {"ip6tables-" + string(v) + "-save"}, {"ipset", "save"}} {
				for line := range strings.Lines(run(t, d, args[0], args[1:]...)) {
					if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ":") { // times and counters
						text += line
					}
				}
			}
			return text
		}
		before := all()
		if err := d.Purge(t.Context()); err != nil {
			t.Error(err)
		}
		if after := all(); after != before {
			t.Errorf("%s: was\n%s\nis\n%s", v, before, after)
		}
		run(t, d, "ipset", "destroy", "SLUICE-4-FRONTENDS")
		if _, err := d.Adopt(t.Context(), services(1, 1), driver.Keep{}); err == nil || !strings.Contains(err.Error(), "chain SLUICE-FORWARD of table filter is another program's") {
			t.Errorf("%s: a chain of another program: %v", v, err)
		}
	}
	if printed.Len() > 0 {
		t.Errorf("printed: %s", &printed)
	}
}

// Sets are of both variants: chains in the one that has no rule which asks them stay another
// program's.
func TestForeignChainInTheOtherVariant(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v xtables.Variant) {
		d := inside(t, Options{Variant: v})
		adopt(t, d, services(1, 1))
		program := "iptables-" + string(v.Other())
		run(t, d, program, "-N", "SLUICE-FORWARD")
		run(t, d, program, "-A", "SLUICE-FORWARD", "-p", "udp", "-j", "DROP")
		run(t, d, program, "-A", "FORWARD", "-j", "SLUICE-FORWARD")
		before := run(t, d, program, "-S")
		adopt(t, d, services(1, 1))
		if after := run(t, d, program, "-S"); after != before {
			t.Errorf("adoption: was\n%s\nis\n%s", before, after)
		}
		if err := d.Purge(t.Context()); err != nil {
			t.Error(err)
		}
		if after := run(t, d, program, "-S"); after != before {
			t.Errorf("clean-up: was\n%s\nis\n%s", before, after)
		}
	})
}

// What a clean-up by hand has left, which may be chains without sets, is ours: it is taken over,
// and removed.
func TestHalfCleaned(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v xtables.Variant) {
		for name, gone := range map[string]func(rule string) bool{
			"empty chains": func(string) bool { return true },
			"rules without sets": func(rule string) bool {
				return strings.Contains(rule, "--match-set") || strings.Contains(rule, "SET --")
			},
		} {
			d := inside(t, Options{Variant: v, Options: driver.Options{Policy: true, Fabric: true}})
			halfClean := func() {
				for _, program := range []string{"iptables-" + string(v), "ip6tables-" + string(v)} {
					script, table := "set -e\n", ""
					for line := range strings.Lines(run(t, d, "sh", "-c", program+"-save 2>/dev/null")) {
						if strings.HasPrefix(line, "*") {
							table = strings.TrimSpace(line[1:])
						}
						if rule, is := strings.CutPrefix(line, "-A "); is && gone(rule) {
							script += program + " -w -t " + table + " -D " + rule
						}
					}
					run(t, d, "sh", "-c", script)
				}
				run(t, d, "ipset", "destroy")
			}
			s := policed(3, func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 1, byte(i + 1)}) })
			s.Services = services(1, 1).Services // its root leads to no chain of ours
			everywhere(s)
			adopt(t, d, s)
			whole := run(t, d, "iptables-"+string(v)+"-save")
			halfClean()
			adopt(t, d, s)
			if again := run(t, d, "iptables-"+string(v)+"-save"); strings.Count(again, "\n") != strings.Count(whole, "\n") {
				t.Errorf("%s: was\n%s\nis\n%s", name, whole, again)
			}
			halfClean()
			if err := d.Purge(t.Context()); err != nil {
				t.Error(err)
			}
			if out := run(t, d, "iptables-"+string(v)+"-save") + run(t, d, "ip6tables-"+string(v)+"-save") + run(t, d, "ipset", "save"); strings.Contains(out, "SLUICE") {
				t.Errorf("%s: a clean-up leaves\n%s", name, out)
			}
		}
	})
}

// everywhere adds to a state what has chains of its own: a fabric, a host endpoint and a deny list.
func everywhere(s *state.State) {
	for _, a := range []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")} {
		s.Services.Settings.SNAT = append(s.Services.Settings.SNAT, state.SNAT{Device: "eth0", Addr: a}, state.SNAT{Device: state.DeviceVXLAN, Addr: a})
		s.Services.Settings.Tunnels = append(s.Services.Settings.Tunnels, state.TunnelEnd{Addr: a, Port: 4789})
	}
	s.Services.Settings.Untracked = true
	id := state.RulesID("rules 0")
	s.Policy.Hosts[1] = &state.Host{Device: "eth0", Input: id, Output: id, ForwardIn: id, ForwardOut: id, PreDNAT: id, UntrackedIn: id, UntrackedOut: id}
	s.Policy.Denied = state.Denied{Devices: []state.Device{{Index: 1, Name: "eth0"}}, Lists: []*state.List{{Prefixes: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}}}
}

// Where chains cannot be removed, the sets stay, also those that no rule asks.
func TestPurgeFails(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "lock")
	t.Setenv("XTABLES_LOCKFILE", lock)
	d := inside(t, Options{Variant: xtables.Legacy, LockWait: time.Second})
	adopt(t, d, services(1, 1))
	run(t, d, "ipset", "create", "SLUICE-4-A-X", clientsKind, "timeout", "9")
	f, err := os.Create(lock)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	before := run(t, d, "ipset", "list", "-n")
	if err := d.Purge(t.Context()); !errors.Is(err, driver.ErrLocked) {
		t.Error(err)
	}
	if after := run(t, d, "ipset", "list", "-n"); after != before {
		t.Errorf("was %q, is %q", before, after)
	}
	_ = f.Close()
	if err := d.Purge(t.Context()); err != nil {
		t.Error(err)
	}
	if after := run(t, d, "ipset", "list", "-n"); after != "" {
		t.Errorf("is left: %q", after)
	}
}

// Without a choice, the variant is that which has more rules; and with one, ours leave the other.
func TestVariants(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v xtables.Variant) {
		d := inside(t, Options{})
		for range 2 {
			run(t, d, "iptables-"+string(v), "-A", "FORWARD", "-j", "ACCEPT")
		}
		run(t, d, "iptables-"+string(v.Other()), "-A", "FORWARD", "-j", "ACCEPT")
		if got, err := d.variant(t.Context()); got != v || err != nil {
			t.Errorf("variant %s is chosen, %s has more rules: %v", got, v, err)
		}
		adopt(t, d, services(5, 1))
		d.chosen = v.Other()
		adopt(t, d, services(5, 1))
		for _, at := range []xtables.Variant{v, v.Other()} {
			ours := strings.Contains(run(t, d, "iptables-"+string(at)+"-save"), prefix)
			if ours != (at == v.Other()) {
				t.Errorf("rules of ours in %s: %v", at, ours)
			}
		}
	})
	if _, err := Open(Options{Variant: "other"}); err == nil || !strings.Contains(err.Error(), "choose legacy or nft") {
		t.Errorf("another variant: %v", err)
	}
}

// While the sources lack something, what the kernel has of it stays.
func TestKeep(t *testing.T) {
	t.Parallel()
	d := inside(t, Options{Variant: xtables.Legacy})
	adopt(t, d, services(5, 1))
	few := services(2, 1)
	p, err := d.Adopt(t.Context(), few, driver.Keep{Services: true})
	if err != nil || p.Len() != 0 || p.Kept().Services != 3 {
		t.Fatalf("kept: %v", err)
	}
	apply(t, p, err)
	if found, err := d.Frontends(t.Context()); len(found) != 5 || err != nil {
		t.Errorf("frontends: %v, %v", found, err)
	}
	if p, err = d.Adopt(t.Context(), services(5, 2), driver.Keep{Services: true}); err != nil || p.Len() == 0 {
		t.Errorf("nothing is lacking, and nothing planned: %v", err)
	}
	adopt(t, d, few)
	if found, err := d.Frontends(t.Context()); len(found) != 2 || err != nil {
		t.Errorf("frontends: %v, %v", found, err)
	}
}

// A first adoption begins with what another program remembers of clients.
func TestRemembered(t *testing.T) {
	t.Parallel()
	s := services(1, 2)
	k, f := web(0, 2)
	f.Affinity = time.Hour
	s.Services.Frontends[k] = f
	client := netip.MustParseAddr("192.0.2.7")
	calls := 0
	remembered := func(context.Context) ([]state.Remembered, error) {
		calls++
		return []state.Remembered{
			{Protocol: k.Protocol, Client: client, Backend: f.Backends[1], Left: time.Minute},
			{Protocol: k.Protocol, Client: client, Backend: netip.MustParseAddrPort("192.0.2.1:1")},
		}, nil
	}
	d := inside(t, Options{Variant: xtables.Legacy, Options: driver.Options{Remembered: remembered}})
	adopt(t, d, s)
	list := run(t, d, "ipset", "list", d.families[0].clients(f.Backends[1]))
	if !strings.Contains(list, "10.96.0.1,tcp:80,192.0.2.7 timeout ") {
		t.Errorf("the set of clients: %s", list)
	}
	before := calls
	if p := adopt(t, d, s); p.Len() > 0 || calls != before {
		t.Errorf("a second adoption asks again:\n%s", p)
	}
}

// Whether there is anything of a variant is known without asking its programs.
func TestTables(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v xtables.Variant) {
		d := inside(t, Options{})
		has := func(want bool, of xtables.Variant, v6 bool) {
			t.Helper()
			if got, err := d.hasTables(of, v6); got != want || err != nil {
				t.Errorf("tables of %s, IPv6 %v: %v, %v", of, v6, got, err)
			}
		}
		for i, program := range []string{"iptables-", "ip6tables-"} {
			has(false, v, i == 1)
			run(t, d, program+string(v), "-t", "mangle", "-A", "FORWARD", "-j", "ACCEPT")
			has(true, v, i == 1)
			has(false, v.Other(), i == 1)
		}
	})
}
