package userspace_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/userspace"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// asideOf are the reasons for what is set aside.
func asideOf(d driver.Driver) (reasons []string) {
	for _, a := range d.SetAside() {
		reasons = append(reasons, a.Object()+": "+a.Reason)
	}
	return reasons
}

// Without redirection the driver serves what it can listen at, names what it can't, and tries that
// again.
func TestBind(t *testing.T) {
	t.Parallel()
	b := newBed(t, userspace.Options{Bind: true})
	b.listen(b.server, backend, echo)
	here := netip.MustParseAddrPort("10.1.0.1:80")
	var taken *net.TCPListener
	must(t, b.node.Do(func() (err error) {
		taken, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.MustParseAddrPort("10.1.0.1:81")))
		return err
	}))
	b.serve(model.TCP, here, backend)
	b.serve(model.TCP, netip.MustParseAddrPort("10.1.0.1:81"), backend)
	b.serve(model.TCP, vip, backend)
	want := []string{
		"Service shop/web: TCP 10.1.0.1:81 is not served: another program listens there; stop it, or give the service another port",
		"Service shop/web: TCP 10.96.0.1:80 is not served: this machine does not have the address, and serving others takes CAP_NET_ADMIN",
	}
	if got := asideOf(b.driver); !slices.Equal(got, want) {
		t.Errorf("set aside:\n%s", strings.Join(got, "\n"))
	}
	b.driver.Held(func(s *state.State) {
		if len(s.Services.Frontends) != 1 {
			t.Errorf("%d frontends are held", len(s.Services.Frontends))
		}
	})
	must(t, exchange(b.dial(here), "hello"))

	must(t, taken.Close())
	l, err := b.node.LinkByName("client")
	must(t, err)
	a, err := netlink.ParseAddr("10.96.0.1/32")
	must(t, err)
	must(t, b.node.AddrAdd(l, a))
	b.adopt()
	if got := asideOf(b.driver); len(got) > 0 {
		t.Errorf("still set aside:\n%s", strings.Join(got, "\n"))
	}
	b.serve(model.UDP, here, b.datagrams())
	for range 2 {
		must(t, b.client.Do(func() error {
			c, err := net.Dial("udp", here.String())
			if err != nil {
				return err
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			return errors.Join(exchange(c, "hello"), exchange(c, "again"))
		}))
	}
	established := b.dial(vip)
	must(t, exchange(established, "hello"))

	// It drains: there are no new connections, and the kernel refuses them.
	f := *b.state.Services.Frontends[keyOf(vip)]
	f.Backends = nil
	b.state.Services.Frontends[keyOf(vip)] = &f
	b.adopt()
	must(t, b.client.Do(func() error {
		if _, err := net.DialTimeout("tcp", vip.String(), patience); !refused(err) {
			t.Errorf("a new connection to what drains: %v", err)
		}
		return nil
	}))
	must(t, exchange(established, "hello again"))
}

func keyOf(a netip.AddrPort) state.FrontendKey {
	return state.FrontendKey{Addr: a.Addr(), Protocol: model.TCP, Port: a.Port()}
}

func refused(err error) bool {
	return err != nil && strings.Contains(err.Error(), syscall.ECONNREFUSED.Error())
}

// unprivileged says that this process is one without privileges, which TestUnprivileged started.
const unprivileged = "SLUICE_TEST_UNPRIVILEGED"

// A process without any privilege needs no other options.
func TestUnprivileged(t *testing.T) {
	t.Parallel()
	if os.Getenv(unprivileged) != "" {
		serveUnprivileged(t)
		return
	}
	ns := world.NewHost(t, "u")
	program := "/proc/self/exe" // whose directory only its owner may enter
	cmd := exec.Command(program, "-test.run=^TestUnprivileged$", "-test.v")
	cmd.Env = append(os.Environ(), unprivileged+"=1")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, ns.Start(cmd))
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "--- PASS") {
		t.Errorf("%v\n%s", err, &out)
	}
}

func serveUnprivileged(t *testing.T) {
	d, err := userspace.Open(userspace.Options{})
	must(t, err)
	defer d.Close()
	must(t, d.Probe(t.Context()))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go echo(c.(*net.TCPConn))
		}
	}()
	backends := []netip.AddrPort{l.Addr().(*net.TCPAddr).AddrPort()}
	s := state.New()
	for _, at := range []string{"127.0.0.1:8080", "127.0.0.1:80", "10.96.0.1:8080"} {
		s.Services.Frontends[keyOf(netip.MustParseAddrPort(at))] = &state.Frontend{Service: model.Name{Name: "web"}, Backends: backends, Alive: backends, Serving: backends}
	}
	p, err := d.Adopt(t.Context(), s, driver.Keep{})
	must(t, err)
	must(t, p.Apply(context.Background()))
	want := []string{
		"Service web: TCP 10.96.0.1:8080 is not served: this machine does not have the address, and serving others takes CAP_NET_ADMIN",
		"Service web: TCP 127.0.0.1:80 is not served: a port this low takes CAP_NET_BIND_SERVICE, or a lower net.ipv4.ip_unprivileged_port_start",
	}
	if got := asideOf(d); !slices.Equal(got, want) {
		t.Errorf("set aside:\n%s", strings.Join(got, "\n"))
	}
	c, err := net.DialTimeout("tcp", "127.0.0.1:8080", patience)
	must(t, err)
	defer c.Close()
	must(t, exchange(c, "hello"))
	if _, err := userspace.Open(userspace.Options{ClientAddress: userspace.Transparent}); err == nil || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("backends that see the client's address: %v", err)
	}
}
