package nftables_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	farms "sluice.dev/sluice/internal/balancer/nftables"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// TestShortcut has farms with few backends go on without the map that leads to their chains, as
// they do not need it, and one that chooses in another way not.
func TestShortcut(t *testing.T) {
	t.Parallel()
	bothDirect(t, func(t *testing.T, w *site, clients []*world.Host, is4 bool, virtual string) {
		w.open = func() (driver.Driver, error) { return farms.Open(farms.Options{Shared: true}) }
		w.restart()
		even, odd := dsr(virtual, is4, port(80)), dsr(virtual, is4, port(81))
		odd.Name, odd.Scheduler, odd.HashBy = "odd", model.Maglev, model.SrcIP|model.SrcPort
		ask := func(at string) error {
			_, err := clients[0].Ask("tcp", clientAddr(0, is4), hostPort(virtual, at), world.Patience)
			return err
		}
		for what, edit := range map[string]func(){
			"in turns":         func() { even.Scheduler = model.RoundRobin },
			"symmetric":        func() { even.Scheduler = model.SymHash },
			"by address":       func() { even.Scheduler, even.HashBy = model.Hash, model.SrcIP },
			"with weights":     func() { even.Backends[0].Weight, even.Backends[1].Weight = 6, 5 },
			"with one backend": func() { even.Backends = even.Backends[:1] },
		} {
			copied := *even
			edit()
			w.set(even, odd)
			w.must(ask("80"))
			w.must(ask("81"))
			w.balancer.Exec("nft", "flush", "map", "netdev", farms.TableName, map[bool]string{true: "ip", false: "ip6"}[is4]+"-direct")
			if err := ask("80"); err != nil {
				t.Errorf("%s: %v\n%s", what, err, w.ingress())
			}
			if err := ask("81"); err == nil {
				t.Errorf("%s: the other farm is served without its map", what)
			}
			w.rules().Distrust()
			w.apply(w.driver.Adopt(t.Context(), w.state, driver.Keep{}))
			even = &copied
		}
	})
}

// TestShortcutChoosesAlike has each client of a farm come to the same backend with the shortcut,
// and without it, as another farm has that.
func TestShortcutChoosesAlike(t *testing.T) {
	t.Parallel()
	w, _ := newDirectSite(t, 3)
	f, other := dsr(virtual4, true, port(80)), dsr(virtual4, true, port(81))
	f.Scheduler, f.HashBy, other.Name = model.Hash, model.SrcIP, "other"
	var from []string
	for n := range 12 {
		from = append(from, fmt.Sprint("10.0.0.", 20+n))
		w.client.Address("eth0", from[n]+"/24")
		for _, s := range w.servers {
			s.Route(from[n]+"/32", "10.1.0.200")
		}
	}
	served := func() map[string]string {
		t.Helper()
		by := map[string]string{}
		for _, a := range from {
			g, err := w.client.Ask("tcp", a, virtual4+":80", world.Patience)
			w.must(err)
			by[a] = g.Server
		}
		return by
	}
	w.set(f)
	alone := served()
	w.set(f, other)
	if beside := served(); !maps.Equal(alone, beside) {
		t.Errorf("alone %v, beside another %v", alone, beside)
	}
}

// TestArrivals has frames that are not for the machine, or of a VLAN, be left alone, and packets
// served that arrive without a frame: with the shortcut, and without it.
func TestArrivals(t *testing.T) {
	t.Parallel()
	w, _ := newDirectSite(t, 1)
	const from, fromTUN = 4000, 4001
	w.client.Address("lo", "10.3.0.2/32")
	w.servers[0].Route("10.3.0.2/32", "10.1.0.200")
	device := w.client.Device("eth0")
	front := w.balancer.Device("front").Attrs().HardwareAddr
	var raw int
	var answered, answeredTUN net.PacketConn
	w.client.In(func() (err error) {
		if raw, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if answered, err = net.ListenPacket("udp4", fmt.Sprint("10.0.0.2:", from)); err != nil {
			return err
		}
		answeredTUN, err = net.ListenPacket("udp4", fmt.Sprint("10.3.0.2:", fromTUN))
		return err
	})
	t.Cleanup(func() { _ = unix.Close(raw); _ = answered.Close(); _ = answeredTUN.Close() })
	tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun0"}, Mode: netlink.TUNTAP_MODE_TUN, NonPersist: true, Queues: 1, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_ONE_QUEUE}
	w.balancer.In(func() error { return netlink.LinkAdd(tun) })
	t.Cleanup(func() { _ = tun.Fds[0].Close() })
	w.balancer.IP("link set tun0 up", "addr add 10.3.0.1/24 dev tun0")
	send := func(frame []byte) {
		t.Helper()
		w.must(unix.Sendto(raw, frame, 0, &unix.SockaddrLinklayer{Ifindex: device.Attrs().Index}))
	}
	frame := func(to net.HardwareAddr, tag ...byte) []byte {
		f := append(append(append([]byte{}, to...), device.Attrs().HardwareAddr...), tag...)
		return append(append(f, 0x08, 0x00), datagram("10.0.0.2", from, virtual4, 5300)...)
	}
	answers := func(c net.PacketConn) {
		t.Helper()
		_ = c.SetReadDeadline(time.Now().Add(world.Patience))
		if _, _, err := c.ReadFrom(make([]byte, 100)); err != nil {
			t.Errorf("%v\n%s", err, w.ingress())
		}
	}
	w.servers[0].Exec("nft", "add table netdev count; add chain netdev count in { type filter hook ingress device eth0 priority 0; }; add rule netdev count in udp dport 5300 counter")
	for _, scheduler := range []model.FarmScheduler{model.RoundRobin, model.Maglev} {
		f := dsr(virtual4, true, port(5300))
		f.Scheduler, f.HashBy, f.Backends = scheduler, model.SrcIP, f.Backends[:1]
		w.set(f)
		_, err := w.ask("udp", virtual4+":5300") // neighbours are known
		w.must(err)
		before := counted(t, w.servers[0], "netdev")
		for what, alien := range map[string][]byte{
			"another machine's":  frame(net.HardwareAddr{2, 0, 0, 0, 0, 0x99}),
			"of a VLAN":          frame(front, 0x81, 0x00, 0, 7),
			"of a VLAN, 802.1ad": frame(front, 0x88, 0xa8, 0, 7),
		} {
			send(alien)
			send(frame(front))
			answers(answered)
			if before++; counted(t, w.servers[0], "netdev") != before {
				t.Fatalf("%s, %s: it is served\n%s", scheduler, what, w.ingress())
			}
		}
		_, err = tun.Fds[0].Write(datagram("10.3.0.2", fromTUN, virtual4, 5300))
		w.must(err)
		answers(answeredTUN)
	}
}

// counted is how many packets have come to a host, by its table count.
func counted(t *testing.T, h *world.Host, family string) (packets int64) {
	t.Helper()
	out := h.Exec("nft", "list", "table", family, "count")
	if _, err := fmt.Sscanf(out[strings.Index(out, "packets"):], "packets %d", &packets); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return packets
}

// datagram is an IPv4 packet of UDP without a checksum of its own.
func datagram(from string, fromPort uint16, to string, toPort uint16) []byte {
	p := append([]byte{0x45, 0, 0, 29, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}, netip.MustParseAddr(from).AsSlice()...)
	p = append(p, netip.MustParseAddr(to).AsSlice()...)
	var sum uint32
	for i := 0; i < len(p); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	binary.BigEndian.PutUint16(p[10:], ^uint16(sum>>16+sum&0xffff))
	p = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(p, fromPort), toPort)
	return append(p, 0, 9, 0, 0, 'x')
}

// TestNoDirectPacketIsLost has a farm change its backends, and how it chooses, and another one come
// and go that chooses likewise, while packets arrive without end. Each gets to a server.
func TestNoDirectPacketIsLost(t *testing.T) {
	t.Parallel()
	const changes = 100
	w, _ := newDirectSite(t, 3)
	farm := func(scheduler model.FarmScheduler, key model.FlowKey, servers, weight int) *model.Farm {
		f := dsr(virtual4, true, port(53))
		f.Scheduler, f.HashBy, f.Backends = scheduler, key, backends(servers, true, 0)
		f.Backends[0].Weight = weight
		return f
	}
	other := dsr(virtual4, true, port(54))
	other.Name = "other"
	turns := [][]*model.Farm{
		{farm(model.RoundRobin, 0, 3, 1)}, {farm(model.RoundRobin, 0, 2, 1)}, {farm(model.RoundRobin, 0, 3, 3), other}, {farm(model.Hash, model.SrcIP, 3, 1), other},
		{farm(model.Hash, model.SrcIP, 2, 1)}, {farm(model.Maglev, model.SrcIP, 2, 1)}, {farm(model.Hash, model.DstPort, 1, 1)},
	}
	w.set(turns[0]...)
	for i, s := range w.servers {
		s.Exec("nft", "add table ip count; add chain ip count in { type filter hook prerouting priority -310; }; add rule ip count in ip daddr "+virtual4+" udp dport 53 counter drop")
		w.balancer.IP(fmt.Sprintf("neigh replace 10.1.0.1%d lladdr %s dev back nud permanent", i+1, s.Device("eth0").Attrs().HardwareAddr))
	}
	var over atomic.Bool
	var sent atomic.Int64
	var senders sync.WaitGroup
	for range 2 {
		senders.Go(func() {
			w.client.In(func() error {
				sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				defer func() { _ = unix.Close(sock) }()
				for !over.Load() {
					switch err := unix.Sendto(sock, []byte("x"), 0, &unix.SockaddrInet4{Addr: [4]byte{10, 0, 0, 100}, Port: 53}); err {
					case nil:
						sent.Add(1)
					case unix.ECONNREFUSED: // the balancer itself got one
					default:
						return err
					}
				}
				return nil
			})
		})
	}
	for i := range changes {
		delta := w.farms(turns[(i+1)%len(turns)]...)
		delta.Farms = state.FarmsDelta{Farms: delta.Farms.Farms}
		w.state.Apply(delta)
		w.apply(w.driver.Update(t.Context(), delta))
	}
	over.Store(true)
	senders.Wait()
	var got int64
	for end := time.Now().Add(world.Patience); got != sent.Load() && time.Now().Before(end); { // the last are under way
		got = 0
		for _, s := range w.servers {
			got += counted(t, s, "ip")
		}
	}
	if got != sent.Load() || got < changes {
		t.Errorf("%d of %d packets were lost in %d changes", sent.Load()-got, sent.Load(), changes)
	}
}
