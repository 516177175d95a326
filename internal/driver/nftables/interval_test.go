package nftables

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/nft"
	"sluice.dev/sluice/internal/driver/nftables/program"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// cidrSettings are settings whose every list holds the prefixes, and the policy's list too.
func cidrState(cidrs []netip.Prefix) *state.State {
	s := isolated()
	s.Services.Settings = state.Settings{ServiceCIDRs: cidrs, ClusterCIDRs: cidrs, LocalCIDRs: cidrs, OutgoingCIDRs: cidrs, PoolCIDRs: cidrs}
	s.Policy.PodCIDRs = cidrs
	return s
}

// lists of CIDRs that a node changes between; the kernel refuses some orders in which two
// intervals' ends are deleted.
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

// TestIntervalsGiveWay goes through lists of CIDRs, by adoptions after a restart, by those of the
// same driver, and by updates. The kernel holds what is wanted after each.
func TestIntervalsGiveWay(t *testing.T) {
	t.Parallel()
	lists := cidrLists()
	r := rand.New(rand.NewPCG(3, 4))
	order := make([]int, 15)
	for i := range order {
		order[i] = r.IntN(len(lists))
	}
	whole := func(t *testing.T, d *Driver, want *state.State) {
		t.Helper()
		d.doubt = true // have it read everything
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

// The kernel takes any list of intervals in place of any other where the set is emptied in the same
// transaction. This is about the kernel alone, and so quick enough for an emulated one.
func TestKernelTakesIntervalsWrittenAnew(t *testing.T) {
	t.Parallel()
	d := openIn(t, testNS(t), Options{Shared: true})
	fp := d.prog.Families[0]
	b := nft.NewBatch(program.TableName)
	b.AddTable(0, "")
	b.AddSet(fp.PodCIDRs)
	if _, err := b.Send(d.sock); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(7, 8))
	for i := range 1000 {
		var cidrs []netip.Prefix
		for range r.IntN(12) {
			cidrs = append(cidrs, netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(r.IntN(4)) << 6, byte(r.IntN(16)) << 4}), 1+r.IntN(16)).Masked())
		}
		b := nft.NewBatch(program.TableName)
		b.FlushSet(fp.PodCIDRs)
		want := map[nft.ElementKey]nft.Element{}
		fp.CIDRElements(fp.PodCIDRs, cidrs, func(e *nft.Element) {
			b.Add(e)
			want[e.ElementKey] = *e
		})
		if _, err := b.Send(d.sock); err != nil {
			t.Fatalf("change %d, to %v: %v\n%s", i, cidrs, err, b)
		}
		have, err := d.content(t.Context(), fp.PodCIDRs)
		if err != nil || !maps.EqualFunc(have, want, func(a, b nft.Element) bool { return a.SameValue(&b) }) {
			t.Fatalf("change %d, to %v: the kernel holds %v: %v", i, cidrs, slices.Collect(maps.Keys(have)), err)
		}
	}
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
		out, err := ns.Run("nft", "list", "table", "inet", program.TableName)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"chain outgoing {", "set ip-outgoing {", "set ip6-pools {", "ip saddr @ip-outgoing ip daddr != @ip-pools masquerade",
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
func TestIntervalsThatAreTheSameStay(t *testing.T) {
	t.Parallel()
	d := openIn(t, testNS(t), Options{Options: driver.Options{Policy: true, Fabric: true}})
	s := cidrState(cidrLists()[0])
	adopt(t, d, s)
	settings := s.Services.Settings
	settings.LocalCIDRs = nil
	text := update(t, d, state.Delta{Services: state.ServicesDelta{Settings: &settings}})
	if want := "empty set ip-own-cidrs\nempty set ip6-own-cidrs\n"; text != want {
		t.Errorf("plans\n%swant\n%s", text, want)
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
		id := state.ProgramID(fmt.Sprint("p", i))
		want.Policy.Programs[id] = &state.Program{ID: id, Tiers: []state.Tier{{Name: "default", Default: model.Deny}}}
		want.Policy.Workloads[netip.MustParseAddr("10.1.0.2")] = &state.Workload{Pod: model.Name{Namespace: "test", Name: "p"}, Device: 6, Ingress: id}
		update(t, d, state.Delta{Services: state.ServicesDelta{Settings: &want.Services.Settings}, Policy: policyDelta(have.Policy, want.Policy)})
		have = want
	}
}
