package nftables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/netns"
)

// policies builds random states of policy, in which everything that a state can say
// occurs.
type policies struct {
	*rand.Rand
	state *state.Policy
}

func randomPolicy(r *rand.Rand, devices ...state.Device) *state.Policy {
	p := policies{r, state.NewPolicy()}
	p.state.PodCIDRs = prefixes("10.1.0.0/24", "fd00:1::/64")
	p.state.HostDevices[1] = struct{}{}
	for i := range r.IntN(4) {
		p.state.PodDevices[100+i] = struct{}{}
	}
	var rules []state.RulesID
	for range 1 + r.IntN(4) {
		rules = append(rules, p.rules())
	}
	pick := func() state.RulesID { return append(rules, "")[r.IntN(len(rules)+1)] }
	for i := range r.IntN(6) {
		for _, a := range []string{fmt.Sprintf("10.1.0.%d", i+1), fmt.Sprintf("fd00:1::%d", i+1)} {
			p.state.Workloads[netip.MustParseAddr(a)] = &state.Workload{
				Pod: model.Name{Namespace: "test", Name: fmt.Sprint("pod-", i)}, Device: r.IntN(3), Ingress: pick(), Egress: pick()}
		}
	}
	for i := range r.IntN(3) {
		p.state.Hosts[1+i] = &state.Host{Name: "node", Device: fmt.Sprint("eth", i), Input: pick(), Output: pick(),
			ForwardIn: pick(), ForwardOut: pick(), PreDNAT: pick(), UntrackedIn: pick(), UntrackedOut: pick()}
	}
	if r.IntN(2) == 0 {
		p.state.Denied = state.Denied{Devices: devices}
		for range 1 + r.IntN(2) {
			id := p.list().ID
			p.state.Denied.Lists = append(p.state.Denied.Lists, p.state.Lists[id])
		}
	}
	return p.state
}

// rules adds rules; their name stands for their content.
func (p policies) rules() state.RulesID {
	rules := &state.Rules{Default: model.Action(p.IntN(2))}
	for i := range 1 + p.IntN(3) {
		t := state.Tier{Name: fmt.Sprint("tier-", i), Default: model.Action(1 + p.IntN(2))}
		for j := range p.IntN(4) {
			key := model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "test", Name: fmt.Sprint("policy-", j)}}
			own := &state.PolicyRules{ID: fmt.Sprint(p.Uint64()), Policy: key}
			for k := range 1 + p.IntN(2) {
				own.Rules = append(own.Rules, p.rule(k))
			}
			t.Policies = append(t.Policies, own)
		}
		rules.Tiers = append(rules.Tiers, t)
	}
	id := state.RulesID(fmt.Sprintf("%016x", p.Uint64()))
	rules.ID = id
	p.state.Rules[id] = rules
	return id
}

func (p policies) rule(i int) state.Rule {
	r := state.Rule{Name: fmt.Sprintf("ingress[%d]", i), Action: model.Action(p.IntN(4)), Source: p.end(), Destination: p.end()}
	switch p.IntN(5) {
	case 0:
		r.Protocol, r.ICMP = 1, &model.ICMP{Type: 8, Code: int16(p.IntN(2) - 1)}
	case 1:
		r.Protocol, r.NotICMP = 58, &model.ICMP{Type: 128, Code: int16(p.IntN(2) - 1)}
	case 2:
		r.NotProtocol = 17
	case 3:
		r.Family = []uint8{0, 4, 6}[p.IntN(3)]
	}
	return r
}

func (p policies) end() (e state.End) {
	for range p.IntN(2) {
		e.In = append(e.In, p.term())
	}
	for range p.IntN(2) {
		e.NotIn = append(e.NotIn, p.term())
	}
	switch p.IntN(4) {
	case 0:
		e.Ports = p.ports()
	case 1:
		e.NotPorts = p.ports()
	}
	return e
}

func (p policies) id() state.SetID { return state.SetID(1 + p.IntN(1<<24-1)) }

func (p policies) term() (t state.Term) {
	for range 1 + p.IntN(2) {
		id := p.id()
		p.state.Groups[id] = map[netip.Addr]struct{}{}
		for range 1 + p.IntN(5) {
			p.state.Groups[id][netip.AddrFrom4([4]byte{10, 1, byte(p.IntN(256)), byte(p.IntN(256))})] = struct{}{}
			p.state.Groups[id][netip.AddrFrom16([16]byte{0xfd, 1, 15: byte(p.IntN(256))})] = struct{}{}
		}
		t.Groups = append(t.Groups, id)
	}
	if p.IntN(2) == 0 {
		t.Lists = append(t.Lists, p.list())
	}
	return t
}

func (p policies) list() state.ListRef {
	id := p.id()
	l := &state.List{Name: fmt.Sprint("list ", id)}
	lengths := map[uint8]bool{}
	lengths6 := map[uint8]bool{}
	for range 1 + p.IntN(20) {
		bits := []int{0, 8, 24, 32}[p.IntN(4)]
		lengths[uint8(bits)] = true
		l.Prefixes = append(l.Prefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(p.IntN(256)), byte(p.IntN(256)), byte(p.IntN(256)), 1}), bits).Masked())
		bits = []int{0, 48, 64, 128}[p.IntN(4)]
		lengths6[uint8(bits)] = true
		l.Prefixes = append(l.Prefixes, netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, byte(p.IntN(256)), 15: 1}), bits).Masked())
	}
	slices.SortFunc(l.Prefixes, netip.Prefix.Compare)
	l.Prefixes = slices.Compact(l.Prefixes)
	p.state.Lists[id] = l
	return state.ListRef{ID: id, IPv4: slices.Sorted(maps.Keys(lengths)), IPv6: slices.Sorted(maps.Keys(lengths6))}
}

func (p policies) ports() *state.Ports {
	ports := &state.Ports{ID: p.id(), Ranges: []state.PortRange{
		{Protocol: model.TCP, First: 80, Last: 80}, {Protocol: model.TCP, First: 8000, Last: 8100}, {Protocol: model.UDP, First: 0, Last: 65535},
	}}
	ports.Ranges = ports.Ranges[p.IntN(3):]
	p.state.PortSets[ports.ID] = ports
	for p.IntN(2) == 0 {
		id := p.id()
		p.state.NamedPorts[id] = map[state.NamedPort]struct{}{
			{Addr: netip.MustParseAddr("10.1.0.1"), Protocol: model.TCP, Port: uint16(p.IntN(65536))}: {},
			{Addr: netip.MustParseAddr("fd00:1::1"), Protocol: model.SCTP, Port: 99}:                  {},
		}
		ports.Named = append(ports.Named, id)
	}
	return ports
}

// policyDelta is what leads from one policy to another.
func policyDelta(before, after *state.Policy) (d state.PolicyDelta) {
	d.Rules = mapDelta(before.Rules, after.Rules)
	d.Workloads = mapDelta(before.Workloads, after.Workloads)
	d.Hosts = mapDelta(before.Hosts, after.Hosts)
	d.PortSets = mapDelta(before.PortSets, after.PortSets)
	d.Lists = mapDelta(before.Lists, after.Lists)
	d.Groups, d.NamedPorts = membersDelta(before.Groups, after.Groups), membersDelta(before.NamedPorts, after.NamedPorts)
	d.PodDevices, d.HostDevices = setDelta(before.PodDevices, after.PodDevices), setDelta(before.HostDevices, after.HostDevices)
	d.Denied, d.PodCIDRs = &after.Denied, &after.PodCIDRs
	return d
}

func mapDelta[K comparable, V any](before, after map[K]*V) map[K]*V {
	d := maps.Clone(after)
	for k := range before {
		if after[k] == nil {
			d[k] = nil
		}
	}
	return d
}

func setDelta[K comparable](before, after map[K]struct{}) map[K]bool {
	d := map[K]bool{}
	for k := range before {
		d[k] = false
	}
	for k := range after {
		d[k] = true
	}
	return d
}

func membersDelta[M comparable](before, after map[state.SetID]map[M]struct{}) map[state.SetID]map[M]bool {
	d := map[state.SetID]map[M]bool{}
	for id := range before {
		d[id] = setDelta(before[id], after[id])
	}
	for id := range after {
		d[id] = setDelta(before[id], after[id])
	}
	return d
}

// addLinks makes two interfaces in the namespace.
func addLinks(t *testing.T, ns *netns.NS) []state.Device {
	t.Helper()
	names := []string{"deny-a", "deny-b"}
	if out, err := exec.Command("ip", "-n", ns.Name, "link", "add", names[0], "type", "veth", "peer", "name", names[1]).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return []state.Device{{Index: 2, Name: names[0]}, {Index: 3, Name: names[1]}}
}

// However the kernel came to a state, by changes or at once, it holds the same, and a
// driver that starts finds nothing to do.
func TestPolicyUpdatesEqualAdoption(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) { policyUpdatesEqualAdoption(t, o, seedOf(o)) })
	t.Run("apart", func(t *testing.T) {
		t.Parallel()
		policyUpdatesEqualAdoption(t, Options{Apart: true}, 2)
	})
}

// seedOf has each of the modes meet states of its own.
func seedOf(o Options) uint64 {
	if o.Shared {
		return 1
	}
	return 0
}

func policyUpdatesEqualAdoption(t *testing.T, o Options, seed uint64) {
	o.Policy = true
	ns := testNS(t)
	devices := addLinks(t, ns)
	r := rand.New(rand.NewPCG(1+seed, 2))
	want := testState()
	want.Policy = state.NewPolicy()
	d := openIn(t, ns, o)
	adopt(t, d, want)
	for round := range 8 {
		next := randomPolicy(r, devices...)
		text := update(t, d, state.Delta{Policy: policyDelta(want.Policy, next)})
		want.Policy = next
		d.Doubt = true // have it read everything
		if n, text := adopt(t, d, want); n != 0 {
			t.Fatalf("round %d: the kernel differs:\n%s", round, text)
		}
		if tampered, err := d.Tampered(t.Context()); tampered || err != nil {
			t.Fatalf("round %d: tampered %v %v after\n%s", round, tampered, err, text)
		}
	}
	listed(t, ns)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = openIn(t, ns, o)
	if n, text := adopt(t, d, want); n != 0 {
		t.Errorf("a driver that starts finds to do:\n%s", text)
	}
	empty := state.NewPolicy()
	update(t, d, state.Delta{Policy: policyDelta(want.Policy, empty)})
	if n := len(d.ruleset.Names) + d.Refs.RuleCount() + len(d.Refs.Counters); n != 2*3*2 {
		t.Errorf("%d rules, counters and chains are left of policies that are gone; the services' learn chains have %d", n, 2*3*2)
	}
	want.Policy = empty
	d.Doubt = true
	if n, text := adopt(t, d, want); n != 0 {
		t.Errorf("after all policies went, the kernel differs:\n%s", text)
	}
}

// listed asks nft to list the table, which it can only if it understands all of it.
func listed(t *testing.T, ns *netns.NS) {
	t.Helper()
	out, err := exec.Command("ip", "netns", "exec", ns.Name, "nft", "list", "table", "inet", ruleset.TableName).CombinedOutput()
	if err != nil {
		t.Fatalf("nft list: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		// See decision 5.
		known := strings.Contains(line, "-affinity != 0x0 [invalid type] update") || strings.Contains(line, "-affine-to ")
		if !known && (strings.Contains(line, "@nh") || strings.Contains(line, "[invalid")) {
			t.Errorf("nft does not understand: %s", line)
		}
	}
}

// isolated is a state with one pod that nothing may reach, and one that everything may.
func isolated() *state.State {
	s := state.New()
	s.Policy = state.NewPolicy()
	s.Policy.Rules["deny"] = &state.Rules{ID: "deny", Tiers: []state.Tier{{Name: "default", Default: model.Deny,
		Policies: []*state.PolicyRules{{Policy: model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "test", Name: "deny"}}}}}}}
	s.Policy.Workloads[netip.MustParseAddr("10.1.0.1")] = &state.Workload{Pod: model.Name{Namespace: "test", Name: "closed"}, Device: 5, Ingress: "deny"}
	s.Policy.Workloads[netip.MustParseAddr("10.1.0.2")] = &state.Workload{Pod: model.Name{Namespace: "test", Name: "open"}, Device: 6}
	return s
}

// While a source could not read everything, nothing is opened that was closed: neither
// for pods that want knows nothing of, nor for those whose policies it may lack.
func TestPolicyKeeping(t *testing.T) {
	t.Parallel()
	ns := testNS(t)
	d := openIn(t, ns, Options{Options: driver.Options{Policy: true}})
	adopt(t, d, isolated())
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = openIn(t, ns, Options{Options: driver.Options{Policy: true}})
	keep := func(want *state.State) (kept int) {
		t.Helper()
		p, kept, err := adoptKeeping(t, d, want, driver.Keep{Services: true, Policy: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Apply(t.Context()); err != nil {
			t.Fatalf("apply: %v\n%s", err, p)
		}
		if tampered, err := d.Tampered(t.Context()); tampered || err != nil {
			t.Errorf("tampered: %v %v", tampered, err)
		}
		return kept
	}
	closed := netip.MustParseAddr("10.1.0.1")
	verdictOf := func(a netip.Addr) string {
		t.Helper()
		content, err := d.Content(t.Context(), d.ruleset.Family(true).Policy.To)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range content {
			if e.Key[3] == a.As4()[3] {
				return e.Verdict.Chain
			}
		}
		return "none"
	}

	lacking := isolated()
	lacking.Policy.Workloads[closed] = &state.Workload{Pod: model.Name{Namespace: "test", Name: "closed"}, Device: 5}
	delete(lacking.Policy.Rules, "deny")
	if keep(lacking) == 0 || !strings.HasPrefix(verdictOf(closed), "ip-rules-") {
		t.Error("a pod was opened while its policy could not be read")
	}
	nothing := state.New()
	nothing.Policy = state.NewPolicy()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = openIn(t, ns, Options{Options: driver.Options{Policy: true}})
	if keep(nothing) == 0 || !strings.HasPrefix(verdictOf(closed), "ip-rules-") {
		t.Error("a pod was forgotten while it could not be read")
	}
	if keep(lacking) == 0 || !strings.HasPrefix(verdictOf(closed), "ip-rules-") {
		t.Error("a pod was opened as soon as it could be read, while its policy could not")
	}
	known := isolated()
	open := known.Policy.Rules["deny"]
	open.ID, open.Tiers[0].Policies[0].Rules = "open", []state.Rule{{Name: "all", Action: model.Allow}}
	known.Policy.Rules = map[state.RulesID]*state.Rules{"open": open}
	known.Policy.Workloads[closed].Ingress = "open"
	before := verdictOf(closed)
	if keep(known); verdictOf(closed) == before {
		t.Error("a policy that was read since changes nothing")
	}
	if keep(isolated()) != 0 {
		t.Error("something is kept though all has been read")
	}
	adopt(t, d, isolated())
	if n, text := adopt(t, d, isolated()); n != 0 {
		t.Errorf("the kernel differs:\n%s", text)
	}
}

// A deny list gets a larger set when it outgrows its own, and a smaller one again, at
// once with all of its addresses, whether the driver lives on or starts.
func TestDenyListsOutgrowTheirSets(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		o.Policy = true
		ns := testNS(t)
		devices := addLinks(t, ns)
		list := func(n int) *state.List {
			l := &state.List{Name: "test"}
			for i := range n {
				l.Prefixes = append(l.Prefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}), 32))
			}
			l.Prefixes = append(l.Prefixes, netip.MustParsePrefix("10.3.0.0/16"), netip.MustParsePrefix("fd00::1/128"))
			slices.SortFunc(l.Prefixes, netip.Prefix.Compare)
			return l
		}
		want := state.New()
		want.Policy = state.NewPolicy()
		d := openIn(t, ns, o)
		adopt(t, d, want)
		for _, n := range []int{10, 1024, 1025, 5000, 5001, 3, 0} {
			denied := state.Denied{Devices: devices, Lists: []*state.List{list(n)}}
			want.Policy.Denied = denied
			update(t, d, state.Delta{Policy: state.PolicyDelta{Denied: &denied}})
			d.Doubt = true
			if n, text := adopt(t, d, want); n != 0 {
				t.Fatalf("the kernel differs:\n%s", text)
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			d = openIn(t, ns, o)
			if n, text := adopt(t, d, want); n != 0 {
				t.Fatalf("a driver that starts finds to do:\n%s", text)
			}
		}
		listed(t, ns)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		d = openIn(t, ns, o)
		want.Policy.Denied = state.Denied{Devices: devices, Lists: []*state.List{list(2000)}}
		adopt(t, d, want)
		d.Doubt = true
		if n, text := adopt(t, d, want); n != 0 {
			t.Fatalf("after another list at the start, the kernel differs:\n%s", text)
		}
	})
}

// What is said to be in force of deny lists that the kernel refuses was taken once: on a new table
// that is nothing.
func TestRefusedDenyLists(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		o.Policy = true
		ns := testNS(t)
		devices := addLinks(t, ns)
		d := openIn(t, ns, o)
		want := state.New()
		want.Policy = state.NewPolicy()
		deny := func(prefix string) *state.Denied {
			want.Policy.Denied = state.Denied{Devices: devices, Lists: []*state.List{{Name: "test", Prefixes: []netip.Prefix{netip.MustParsePrefix(prefix)}}}}
			return &want.Policy.Denied
		}
		inForce := func(text string) {
			t.Helper()
			if list := d.SetAside(); len(list) != 1 || list[0].Kind != "deny lists" || list[0].InForce != text {
				t.Errorf("set aside: %+v, want deny lists with %q in force", list, text)
			}
		}
		refuse := func(m Message) error {
			if m.Type == unix.NFT_MSG_NEWSETELEM && strings.Contains(attr.Text(attr.Find(m.Body, unix.NFTA_SET_ELEM_LIST_SET)), "-denied") {
				return unix.ENFILE
			}
			return nil
		}
		deny("10.3.0.1/32")
		d.Refuse(refuse)
		adopt(t, d, want)
		inForce(model.InForceNothing)
		d.Refuse(func(Message) error { return nil })
		update(t, d, state.Delta{Policy: state.PolicyDelta{Denied: deny("10.3.0.1/32")}})
		d.Refuse(refuse)
		update(t, d, state.Delta{Policy: state.PolicyDelta{Denied: deny("10.4.0.1/32")}})
		inForce(model.InForceLast)
	})
}
