package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/world"
)

func TestFairShare(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		counts []int
		room   int
		want   int
	}{
		{nil, 10, 10},
		{[]int{100}, 10, 10},
		{[]int{5, 100}, 20, 15},
		{[]int{50, 50, 1}, 21, 10},
		{[]int{1, 2, 3}, 100, 94},
	} {
		got := fairShare(slices.Clone(c.counts), c.room)
		sum := 0
		for _, n := range c.counts {
			sum += min(n, got)
		}
		if got != c.want || sum > c.room {
			t.Errorf("%v in %d: a share of %d, want %d", c.counts, c.room, got, c.want)
		}
	}
}

// floods is a node with services of session affinity, and a machine that sends it datagrams from
// any address.
type floods struct {
	driver, reader *Driver
	sender         *netns.NS
	sock           int
}

const clientsMost = 1024 // that the test's map takes

func newFloods(t *testing.T, services int) *floods {
	node, sender := world.NewHost(t, "node"), world.NewHost(t, "sender")
	node.Join("eth0", sender, "eth0")
	node.Address("eth0", "192.0.2.1/24")
	node.Address("lo", "10.1.0.1/32")
	sender.Address("eth0", "192.0.2.2/24")
	node.Gateway("192.0.2.2")
	node.Set("net/ipv4/conf/all/rp_filter", "0")
	node.Set("net/ipv4/conf/eth0/rp_filter", "0")
	small := func(o Options) (*Driver, error) {
		d, err := Open(o)
		if err == nil {
			d.ruleset = ruleset.NewSets(ruleset.Options{}, clientsMost)
			d.ruleset.AddChains()
			d.Layout = &d.ruleset.Layout
		}
		return d, err
	}
	f := &floods{driver: openWith(t, node.NS, small), reader: openIn(t, node.NS, Options{}), sender: sender.NS}
	s := state.New()
	for i := range services {
		b := addrPorts("10.1.0.1:53")
		s.Services.Frontends[f.frontend(i)] = &state.Frontend{Kind: state.NodePort, Service: model.Name{Namespace: "test", Name: fmt.Sprint("s", i)},
			Backends: b, Alive: b, Serving: b, Affinity: 3 * time.Hour}
	}
	adopt(t, f.driver, s)
	err := sender.Do(func() (err error) {
		f.sock, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(f.sock) })
	return f
}

func (f *floods) frontend(service int) state.FrontendKey {
	return state.FrontendKey{Addr: netip.MustParseAddr("192.0.2.1"), Protocol: model.UDP, Port: uint16(30000 + service)}
}

// send sends a datagram to the service from each of n addresses, the first being 198.18.0.0 plus
// from.
func (f *floods) send(t *testing.T, service, from, n int) {
	t.Helper()
	to := unix.SockaddrInet4{Addr: [4]byte{192, 0, 2, 1}}
	for i := range n {
		p := make([]byte, 28)
		p[0], p[8], p[9] = 0x45, 64, unix.IPPROTO_UDP
		binary.BigEndian.PutUint32(p[12:], 198<<24|18<<16|uint32(from+i))
		copy(p[16:], to.Addr[:])
		binary.BigEndian.PutUint16(p[20:], 40000)
		binary.BigEndian.PutUint16(p[22:], uint16(30000+service))
		binary.BigEndian.PutUint16(p[24:], 8)
		if err := unix.Sendto(f.sock, p, 0, &to); err != nil {
			t.Fatal(err)
		}
	}
}

// remembered are how many clients of each service are.
func (f *floods) remembered(t *testing.T) map[uint16]int {
	t.Helper()
	counts := map[uint16]int{}
	fp := f.driver.ruleset.Families[0]
	for {
		clear(counts)
		err := f.reader.Sock.ReadSet(t.Context(), ruleset.TableName, fp.Affinity, func(e nft.Element) {
			_, k, _ := fp.Remembered(&e)
			counts[k.Port-30000]++
		})
		if err == nil {
			return counts
		}
		if err != nft.ErrInterrupted {
			t.Fatal(err)
		}
	}
}

func (f *floods) waitFor(t *testing.T, what string, ok func(counts map[uint16]int) bool) {
	t.Helper()
	var counts map[uint16]int
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if counts = f.remembered(t); ok(counts) {
			return
		}
	}
	t.Fatalf("%s: in vain; clients of services: %v", what, counts)
}

// However many addresses send to one service with affinity, clients of another one are remembered;
// those that return stay.
func TestFloodOfOneService(t *testing.T) {
	t.Parallel()
	f := newFloods(t, 2)
	f.send(t, 1, 0, 20)
	f.waitFor(t, "clients are learnt", func(n map[uint16]int) bool { return n[1] == 20 })
	f.send(t, 0, 1000, 5000)
	f.send(t, 1, 20, 5)
	f.waitFor(t, "clients are learnt beside a flood", func(n map[uint16]int) bool { return n[1] == 25 })
	if n := f.remembered(t)[0]; n < clientsMost/ruleset.LearnBurst || n > clientsMost/2 {
		t.Errorf("%d clients of the flooded service are remembered", n)
	}
}

// Floods of so many services that their shares fill the map cost others nothing that lasts.
func TestFloodOfManyServices(t *testing.T) {
	t.Parallel()
	const services = 24
	f := newFloods(t, services+1)
	f.send(t, services, 0, 20)
	f.waitFor(t, "clients are learnt", func(n map[uint16]int) bool { return n[services] == 20 })
	for i := range services {
		f.send(t, i, 1000, 200)
	}
	total := func(n map[uint16]int) (sum int) {
		for _, c := range n {
			sum += c
		}
		return sum
	}
	f.driver.forget.Ask(struct{}{})
	f.waitFor(t, "the oldest are forgotten", func(n map[uint16]int) bool { return total(n) <= clientsMost/4*3 })
	f.send(t, services, 20, 5)
	f.waitFor(t, "clients are learnt again", func(n map[uint16]int) bool { return n[services] == 25 })
	if n := f.remembered(t); n[0] == 0 {
		t.Errorf("a flooded service has lost all: %v", n)
	}
	if n := f.driver.Remembered(); n.IPv4 == 0 || n.Most != ruleset.AffinitySize || n.Forgotten == 0 {
		t.Errorf("remembered: %+v", n)
	}
}
