package nftables

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// cidrState is a state in which every list of prefixes is this one.
func cidrState(cidrs []netip.Prefix) *state.State {
	s := isolated()
	s.Services.Settings = state.Settings{ServiceCIDRs: cidrs, ClusterCIDRs: cidrs, LocalCIDRs: cidrs, OutgoingCIDRs: cidrs, PoolCIDRs: cidrs}
	s.Policy.PodCIDRs = cidrs
	return s
}

// cidrLists are lists of CIDRs that a node changes between.
func cidrLists() [][]netip.Prefix {
	lists := [][]netip.Prefix{
		prefixes("10.1.0.0/16", "10.3.0.0/16", "fd00:1::/64", "fd00:3::/64"),
		prefixes("10.9.0.0/16", "fd00:9::/64"),
		nil,
		prefixes("0.0.0.0/0", "::/0"),
		prefixes("10.0.0.0/16", "10.1.0.0/16", "fd00::/64", "fd00:0:0:1::/64"), // side by side
		prefixes("10.1.0.0/16", "10.2.0.0/15", "fd00:0:0:1::/64", "fd00:0:0:2::/63"),
		prefixes("224.0.0.0/3", "128.0.0.0/1", "ffff::/16"), // up to the last address
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		var list []netip.Prefix
		for range r.IntN(9) {
			var v6 [16]byte
			binary.BigEndian.PutUint64(v6[:], r.Uint64N(64)<<56)
			list = append(list,
				netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(r.IntN(16)) << 4}), 9+r.IntN(8)).Masked(),
				netip.PrefixFrom(netip.AddrFrom16(v6), 1+r.IntN(10)).Masked())
		}
		slices.SortFunc(list, netip.Prefix.Compare)
		lists = append(lists, slices.Compact(list))
	}
	return lists
}

// TestListsGiveWay goes through lists of CIDRs, by adoptions after a restart, by those of the
// same driver, and by updates. The kernel holds what is wanted after each.
func TestListsGiveWay(t *testing.T) {
	t.Parallel()
	lists := cidrLists()
	r := rand.New(rand.NewPCG(3, 4))
	order := make([]int, 15)
	for i := range order {
		order[i] = r.IntN(len(lists))
	}
	whole := func(t *testing.T, d *Driver, want *state.State) {
		t.Helper()
		d.Doubt = true // have it read everything
		if n, text := adopt(t, d, want); n != 0 {
			t.Fatalf("the kernel differs:\n%s", text)
		}
	}
	t.Run("restart", func(t *testing.T) {
		ns := testNS(t)
		for _, i := range append([]int{0, 1, 0, 1, 0, 1, 0, 1}, order[:4]...) {
			d := openIn(t, ns, Options{Options: driver.Options{Policy: true, Fabric: true}})
			adopt(t, d, cidrState(lists[i]))
			whole(t, d, cidrState(lists[i]))
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("adopt", func(t *testing.T) {
		d := openIn(t, testNS(t), Options{Options: driver.Options{Policy: true, Fabric: true}})
		for _, i := range order {
			adopt(t, d, cidrState(lists[i]))
		}
		whole(t, d, cidrState(lists[order[len(order)-1]]))
	})
	t.Run("update", func(t *testing.T) {
		d := openIn(t, testNS(t), Options{Options: driver.Options{Policy: true, Fabric: true}})
		have := cidrState(nil)
		adopt(t, d, have)
		for _, i := range order {
			want := cidrState(lists[i])
			update(t, d, state.Delta{Services: state.ServicesDelta{Settings: &want.Services.Settings}, Policy: policyDelta(have.Policy, want.Policy)})
			whole(t, d, want)
			have = want
		}
	})
}

// A table gets the sets and the chain of what goes to the outside, and loses them, as agents come
// with and without the pod network between nodes; nothing is left to do each time.
func TestOutgoingComesAndGoes(t *testing.T) {
	t.Parallel()
	ns := testNS(t)
	for i, outgoing := range []bool{false, true, false, true} {
		d := openIn(t, ns, Options{Options: driver.Options{Policy: true, Fabric: outgoing}})
		s := cidrState(cidrLists()[0])
		s.Services.Settings.SNAT = []state.SNAT{{Device: "eth0", Addr: netip.MustParseAddr("192.0.2.1")}, {Device: "interface-of-15", Addr: netip.MustParseAddr("2001:db8::1")}}
		if n, _ := adopt(t, d, s); n == 0 {
			t.Errorf("%d: nothing changed", i)
		}
		if n, text := adopt(t, d, s); n != 0 {
			t.Errorf("%d: the kernel differs:\n%s", i, text)
		}
		out, err := ns.Run("nft", "list", "table", "inet", ruleset.TableName)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"chain outgoing {", "set ip-outgoing {", "set ip6-pools {",
			"type ifname : ipv4_addr", `"eth0" : 192.0.2.1`, `"interface-of-15" : 2001:db8::1`, "snat ip to oifname map @ip-snat fully-random"} {
			if strings.Contains(string(out), want) != outgoing {
				t.Errorf("%d: %q is there: %v", i, want, !outgoing)
			}
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// An address of an interface that comes, changes or goes is one element each.
func TestAddressesOfInterfacesChange(t *testing.T) {
	t.Parallel()
	d := openIn(t, testNS(t), Options{Options: driver.Options{Policy: true, Fabric: true}})
	s := cidrState(cidrLists()[0])
	adopt(t, d, s)
	at := func(device, addr string) state.SNAT {
		return state.SNAT{Device: device, Addr: netip.MustParseAddr(addr)}
	}
	for _, step := range []struct {
		now  []state.SNAT
		want string
	}{
		{[]state.SNAT{at("eth0", "192.0.2.1"), at("eth0", "2001:db8::1")}, "add element ip-snat { eth0 : 192.0.2.1 }\nadd element ip6-snat { eth0 : 2001:db8::1 }\n"},
		{[]state.SNAT{at("eth0", "192.0.2.9"), at("eth0", "2001:db8::1")}, "delete element ip-snat { eth0 }\nadd element ip-snat { eth0 : 192.0.2.9 }\n"},
		{[]state.SNAT{at("eth0", "2001:db8::1")}, "delete element ip-snat { eth0 }\n"},
	} {
		settings := s.Services.Settings
		settings.SNAT = step.now
		if text := update(t, d, state.Delta{Services: state.ServicesDelta{Settings: &settings}}); text != step.want {
			t.Errorf("%v: plans\n%swant\n%s", step.now, text, step.want)
		}
	}
}

// What is the same is not written again.
func TestListsThatAreTheSameStay(t *testing.T) {
	t.Parallel()
	d := openIn(t, testNS(t), Options{Options: driver.Options{Policy: true, Fabric: true}})
	s := cidrState(cidrLists()[0])
	adopt(t, d, s)
	settings := s.Services.Settings
	settings.LocalCIDRs = nil
	text := update(t, d, state.Delta{Services: state.ServicesDelta{Settings: &settings}})
	lines := slices.Sorted(strings.Lines(text))
	want := "delete element ip-own-cidrs { 16 . 10.1.0.0 }\ndelete element ip-own-cidrs { 16 . 10.3.0.0 }\n" +
		"delete element ip6-own-cidrs { 64 . fd00:1:: }\ndelete element ip6-own-cidrs { 64 . fd00:3:: }\n"
	if got := strings.Join(lines, ""); got != want {
		t.Errorf("plans\n%swant\n%s", got, want)
	}
}

// An adoption writes the chains alone in which a list is looked up that differs.
func TestListsThatAreTheSameStayInAdoptions(t *testing.T) {
	t.Parallel()
	ns := testNS(t)
	o := Options{Options: driver.Options{Policy: true, Fabric: true}}
	d := openIn(t, ns, o)
	s := cidrState(cidrLists()[0])
	adopt(t, d, s)
	rules := func() map[string]string { // by chain, with their handles
		all := map[string]string{}
		for _, c := range d.ruleset.ListChains(nil) {
			out, err := ns.Run("nft", "-a", "list", "chain", "inet", ruleset.TableName, c.Name)
			if err != nil {
				t.Fatal(err)
			}
			all[c.Name] = string(out)
		}
		return all
	}
	before := rules()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	s.Services.Settings.LocalCIDRs = prefixes("10.9.0.0/24", "fd00:1::/64", "fd00:3::/64")
	adopt(t, openIn(t, ns, o), s)
	for chain, now := range rules() {
		if (now != before[chain]) != (chain == "ip-keep") {
			t.Errorf("chain %s was\n%sis\n%s", chain, before[chain], now)
		}
	}
}

// A node has a second pod CIDR and loses it, while a policy comes with chains of its own.
func TestPodCIDRsChangeWithChains(t *testing.T) {
	t.Parallel()
	d := openIn(t, testNS(t), Options{Options: driver.Options{Policy: true, Fabric: true}})
	have := cidrState(cidrLists()[0])
	adopt(t, d, have)
	for i := range 20 {
		want := cidrState(cidrLists()[i%2])
		id := state.RulesID(fmt.Sprint("p", i))
		want.Policy.Rules[id] = &state.Rules{ID: id, Tiers: []state.Tier{{Name: "default", Default: model.Deny}}}
		want.Policy.Workloads[netip.MustParseAddr("10.1.0.2")] = &state.Workload{Pod: model.Name{Namespace: "test", Name: "p"}, Device: 6, Ingress: id}
		update(t, d, state.Delta{Services: state.ServicesDelta{Settings: &want.Services.Settings}, Policy: policyDelta(have.Policy, want.Policy)})
		have = want
	}
}
