package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/world"
)

// refusedFarm is a farm whose backend red comes to refuse connections.
type refusedFarm struct {
	name, virtual string
	red           string // address of the backend
	port          int    // of the farm and the backends
	refuse        func()
}

// listening has a server answer requests at a port, and counts those for /health.
func (w *balanced) listening(host *world.Host, port int, checks *atomic.Int64) net.Listener {
	w.t.Helper()
	var l net.Listener
	host.In(func() (err error) { l, err = net.Listen("tcp", fmt.Sprint(":", port)); return err })
	server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/health" {
			checks.Add(1)
		}
	})}
	go func() { _ = server.Serve(l) }()
	w.t.Cleanup(func() { _ = server.Close() })
	return l
}

// double gives all hosts addresses of IPv6, and red a network behind it.
func (w *balanced) double() {
	w.client.Address("eth0", "fd00::2/64")
	w.machine.Address("front", "fd00::1/64", "fd00::100/128")
	w.machine.Address("back", "fd01::1/64")
	w.client.Gateway("10.0.0.1", "fd00::1") // balancers that translate packet by packet forward ICMP errors
	red, blue := w.servers["red"], w.servers["blue"]
	red.Address("eth0", "fd01::11/64")
	blue.Address("eth0", "fd01::12/64")
	red.Gateway("fd01::1")
	blue.Gateway("fd01::1")
	red.Forward()
	w.machine.Route("10.2.0.0/24", "10.1.0.11")
	w.machine.Route("fd02::/64", "fd01::11")
	red.Set("net.ipv4.icmp_ratelimit", "0")
	red.Set("net.ipv6.icmp.ratelimit", "0")
	w.nft(red, "add table inet firewall { chain input { type filter hook input priority 0; }; }")
}

func (w *balanced) nft(host *world.Host, command string) {
	w.t.Helper()
	if out, err := host.Run("nft", command); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
}

// TestBalanceRefused has a backend be down because it refuses connections, in each way that there
// is: its check would find that out an hour later.
func TestBalanceRefused(t *testing.T) {
	t.Parallel()
	w := newBalanced(t)
	w.double()
	red := w.servers["red"]
	var checks atomic.Int64
	var all []refusedFarm
	var farms []map[string]any
	for _, mode := range []string{"dnat", "snat", "stlsdnat"} {
		for _, is4 := range []bool{true, false} {
			for _, way := range []string{"closed", "reset", "port", "router"} {
				f := refusedFarm{port: 9000 + len(all), virtual: "10.0.0.100", red: "10.1.0.11"}
				blue, far := "10.1.0.12", fmt.Sprintf("10.2.0.%d", len(all)+1)
				if !is4 {
					f.virtual, f.red, blue, far = "fd00::100", "fd01::11", "fd01::12", fmt.Sprintf("fd02::%d", len(all)+1)
				}
				f.name = fmt.Sprintf("%s-%s-%v", mode, way, is4)
				l := w.listening(red, f.port, &checks)
				w.listening(w.servers["blue"], f.port, &checks)
				reject := fmt.Sprintf("add rule inet firewall input tcp dport %d reject with ", f.port)
				switch way {
				case "closed":
					f.refuse = func() { _ = l.Close() }
				case "reset":
					f.refuse = func() { w.nft(red, reject+"tcp reset") }
				case "port":
					f.refuse = func() { w.nft(red, reject+"icmpx type port-unreachable") }
				case "router":
					f.red = far
					red.Address("lo", far+map[bool]string{true: "/32", false: "/128"}[is4])
					f.refuse = func() {
						red.IP("address delete "+far+map[bool]string{true: "/32", false: "/128"}[is4]+" dev lo", "route add unreachable "+far)
					}
				}
				check := map[string]any{"type": "tcp", "interval": 3600}
				if len(all)%2 == 0 {
					check = map[string]any{"type": "http", "path": "/health", "status": "200", "interval": 3600}
				}
				farms = append(farms, map[string]any{
					"name": f.name, "mode": mode, "virtual-addr": f.virtual, "virtual-ports": fmt.Sprint(f.port), "health-check": check,
					"backends": []map[string]any{{"name": "red", "ip-addr": f.red, "port": fmt.Sprint(f.port)}, {"name": "blue", "ip-addr": blue, "port": fmt.Sprint(f.port)}},
				})
				all = append(all, f)
			}
		}
	}
	text, err := json.Marshal(map[string]any{"farms": farms})
	w.must(err)
	write(t, w.dir, "farms.json", string(text))
	w.start()
	for _, f := range all {
		f.refuse()
		eventually(t, f.name+": red is down", func() bool {
			c, err := w.client.Dial("tcp", "", net.JoinHostPort(f.virtual, fmt.Sprint(f.port)), 200*time.Millisecond)
			if err == nil {
				_ = c.Close()
			}
			return w.backendOf(f.name, "red").State == "down"
		})
	}
	for _, f := range all {
		if b := w.backendOf(f.name, "blue"); b.State != "serving" {
			t.Errorf("%s: blue is %s", f.name, b.State)
		}
	}
}

// TestBalanceRefusedSome has a backend refuse a client by its firewall, again and again, and
// another host forge resets in its name. Its check succeeds: it stays up, and is checked a bounded
// number of times.
func TestBalanceRefusedSome(t *testing.T) {
	t.Parallel()
	w := newBalanced(t)
	red := w.servers["red"]
	var checks atomic.Int64
	w.listening(red, 9000, &checks)
	w.nft(red, "add table inet firewall { chain input { type filter hook input priority 0; ip saddr 10.0.0.0/24 tcp dport 9000 reject with tcp reset; }; }")
	for mode, refuse := range map[string]func(){
		"dnat": func() {
			if c, err := w.client.Dial("tcp", "", "10.0.0.100:80", world.Patience); err == nil {
				_ = c.Close()
				t.Error("red does not refuse")
			}
		},
		"stlsdnat": func() { w.forgeReset(w.servers["blue"], [4]byte{10, 1, 0, 11}, 9000, [4]byte{10, 0, 0, 2}) },
	} {
		write(t, w.dir, "farms.json", `{"farms": [{"name": "web", "virtual-addr": "10.0.0.100", "virtual-ports": "80", "mode": "`+mode+`",
			"health-check": {"type": "http", "path": "/health", "interval": 3600},
			"backends": [{"name": "red", "ip-addr": "10.1.0.11", "port": "9000"}]}]}`)
		w.kill()
		w.must(os.RemoveAll(w.path("state.json")))
		first := checks.Load()
		w.start()
		eventually(t, "the first check", func() bool { return checks.Load() > first })
		begin, before := time.Now(), checks.Load()
		eventually(t, mode+": checks", func() bool {
			for range 100 {
				refuse()
			}
			return checks.Load() >= before+3
		})
		// One of them may have been the second of those that spread all checks over the interval.
		if most := before + 3 + int64(time.Since(begin)/(100*time.Millisecond)); checks.Load() > most {
			t.Errorf("%s: checked %d times, want %d at the most", mode, checks.Load()-before, most-before)
		}
		if b := w.backend("red"); b.State != "serving" {
			t.Errorf("%s: red is %s", mode, b.State)
		}
	}
}

// forgeReset has a host send a reset that looks like another's answer to a SYN.
func (w *balanced) forgeReset(from *world.Host, source [4]byte, port uint16, to [4]byte) {
	w.t.Helper()
	packet := append([]byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, unix.IPPROTO_TCP, 0, 0}, slices.Concat(source[:], to[:])...)
	packet = binary.BigEndian.AppendUint16(packet, port)
	packet = append(packet, 0x30, 0x39, 0, 0, 0, 0, 0, 0, 0, 1, 0x50, 0x14, 0, 0, 0, 0, 0, 0) // RST and ACK
	from.In(func() error {
		raw, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		return errors.Join(unix.Sendto(raw, packet, 0, &unix.SockaddrInet4{Addr: to}), unix.Close(raw))
	})
}
