package nftables_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/world"
)

// everyKind is a state of n services in both families that between them use all that
// a frontend can ask for.
func everyKind(n int) *state.State {
	s := state.New()
	s.Services.Settings.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/32")}
	s.Services.Settings.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:96::/108")}
	s.Services.Settings.LocalCIDRs = s.Services.Settings.ClusterCIDRs
	for i := range n {
		hi, lo := byte(i>>8), byte(i)
		addFrontend(s, i, netip.AddrFrom4([4]byte{10, 96, hi, lo}), netip.AddrFrom4([4]byte{10, 244, hi, lo}))
		addFrontend(s, i, netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x96, 14: hi, 15: lo}), netip.AddrFrom16([16]byte{0xfd, 0, 2, 0x44, 14: hi, 15: lo}))
	}
	return s
}

func addFrontend(s *state.State, i int, vip, backend netip.Addr) {
	f := &state.Frontend{Service: model.Name{Namespace: "default", Name: fmt.Sprint("svc-", i)}, Kind: state.Kind(i % 4), Reject: true}
	for j := range i % 13 { // none at all, too
		f.Backends = append(f.Backends, netip.AddrPortFrom(backend, uint16(8000+j)))
	}
	f.Alive = f.Backends
	switch i % 5 {
	case 1:
		f.Affinity = 3 * time.Hour
	case 2:
		f.SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}
	case 3:
		f.LocalOnly, f.Local = f.External(), f.Backends
	}
	proto := []model.Protocol{model.TCP, model.UDP, model.SCTP}[i%3]
	s.Services.Frontends[state.FrontendKey{Addr: vip, Protocol: proto, Port: 80}] = f
	s.Services.ClusterIPs[vip] = struct{}{}
	s.Services.Hairpins[backend] = struct{}{}
}

func openIn(t *testing.T, ns *netns.NS) (d *nftables.Driver) {
	t.Helper()
	err := ns.Do(func() (err error) {
		d, err = nftables.Open(nftables.Options{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// adopt adopts and applies, and returns the number of operations it took.
func adopt(t *testing.T, d *nftables.Driver, s *state.State) int {
	t.Helper()
	p, err := d.Adopt(t.Context(), s, driver.Keep{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p.Len()
}

type rulesetSize struct{ chains, rules, sets int }

// measure counts what the kernel holds for the driver's table.
func measure(t *testing.T, ns *netns.NS) (size rulesetSize) {
	t.Helper()
	err := ns.Do(func() error {
		c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
		if err != nil {
			return err
		}
		defer c.Close()
		for count, get := range map[*int]netlink.HeaderType{
			&size.chains: unix.NFT_MSG_GETCHAIN, &size.rules: unix.NFT_MSG_GETRULE, &size.sets: unix.NFT_MSG_GETSET,
		} {
			if *count, err = countObjects(c, get); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return size
}

// countObjects dumps all objects of a kind in family inet. The attribute that names the
// table is the first of each of them.
func countObjects(c *netlink.Conn, get netlink.HeaderType) (n int, err error) {
	const generic = 4 // struct nfgenmsg
	replies, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | get, Flags: netlink.Request | netlink.Dump},
		Data:   []byte{unix.NFPROTO_INET, 0, 0, 0},
	})
	if err != nil {
		return 0, err
	}
	for _, r := range replies {
		ad, err := netlink.NewAttributeDecoder(r.Data[generic:])
		if err != nil {
			return 0, err
		}
		for ad.Next() {
			if ad.Type() == unix.NFTA_CHAIN_TABLE && ad.String() == ruleset.TableName {
				n++
			}
		}
	}
	return n, nil
}

// TestConstantRuleset counts the ruleset at both ends of a cluster's growth, and
// adopts what it finds there: a driver that comes back to what it left has nothing to do.
func TestConstantRuleset(t *testing.T) {
	t.Parallel()
	sizes := map[int]rulesetSize{}
	for _, n := range []int{10, 1000} {
		ns, s := world.NewHost(t, "const").NS, everyKind(n)
		d := openIn(t, ns)
		if adopt(t, d, s) == 0 {
			t.Fatal("an empty kernel needs no operation")
		}
		sizes[n] = measure(t, ns)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		d = openIn(t, ns)
		if ops := adopt(t, d, s); ops != 0 {
			t.Errorf("%d services: adopted with %d operations, though nothing changed", n, ops)
		}
		if err := d.Purge(t.Context()); err != nil {
			t.Error(err)
		}
		if left := measure(t, ns); left != (rulesetSize{}) {
			t.Errorf("%d services: the purge left %+v", n, left)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("at 10 services: %+v", sizes[10])
	if sizes[10] != sizes[1000] || sizes[10].rules == 0 {
		t.Errorf("the ruleset is %+v at 10 services and %+v at 1,000", sizes[10], sizes[1000])
	}
}
