package speaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/config/oc"
	gobgp "github.com/osrg/gobgp/v4/pkg/server"

	"sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/model"
)

// server is a running gobgp server.
type server struct {
	*gobgp.BgpServer
	cancel  context.CancelFunc // of what watches it
	absent  []netip.Addr       // to listen on, which the node does not have
	port    uint16
	started time.Time
}

// missing reports whether an address that the server was to listen on has come.
func (v *server) missing() bool {
	return slices.ContainsFunc(v.absent, func(a netip.Addr) bool { return tryListen(a, v.port) == nil })
}

// restart ends the server, if there is one, and starts one by the settings. Peers that know
// graceful restart are left without a word, and keep our routes meanwhile.
func (s *Speaker) restart() {
	s.stop()
	err := sound(s.settings)
	s.fault("settings", prefixed("no session with any peer: ", err))
	if err != nil {
		return
	}
	listen, absent, err := listenable(s.settings)
	s.fault(faultListen, notListening(absent, err))
	if err != nil {
		return
	}
	v := &server{absent: absent, port: s.settings.Port, started: time.Now()}
	v.BgpServer = gobgp.NewBgpServer(gobgp.LoggerOption(slog.New(&ear{to: s.log, hear: s.hear}), nil))
	go v.Serve()
	err = s.start(v, listen)
	s.fault("server", prefixed("start BGP: ", err))
	if err != nil {
		v.end(s.log)
		return
	}
	s.server = v
	s.update()
}

// faultListen is what the fault is about that has the server not listen.
const faultListen = "listen"

// sound finds what no server can start with.
func sound(n *bgp.Settings) error {
	switch {
	case n.AS == 0:
		return errors.New("this node has no AS")
	case !n.RouterID.Is4():
		return fmt.Errorf("the router ID %s is no IPv4 address", n.RouterID)
	}
	return nil
}

// tables are the families that the server has tables of; with all that it knows, they would take
// more than the rest of it.
var tables = []uint32{uint32(oc.AFI_SAFI_TYPE_IPV4_UNICAST.ToInt()), uint32(oc.AFI_SAFI_TYPE_IPV6_UNICAST.ToInt())}

func (s *Speaker) start(v *server, listen []string) error {
	port := int32(s.settings.Port)
	if len(listen) == 0 && len(s.settings.Listen) > 0 || port == 0 {
		port = -1
	}
	ctx, cancel := context.WithCancel(context.Background())
	v.cancel = cancel
	err := v.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{
		Asn: s.settings.AS, RouterId: s.settings.RouterID.String(), ListenPort: port, ListenAddresses: listen,
		Families: tables,
	}})
	if err == nil {
		err = v.setUpPolicies(ctx)
	}
	if err != nil {
		return err
	}
	return s.watch(ctx, v)
}

// watch has the server's events posted for as long as it is the one.
func (s *Speaker) watch(ctx context.Context, v *server) error {
	post := func(f func()) {
		s.inbox.post(func() {
			if s.server == v {
				f()
			}
		})
	}
	return v.WatchEvent(ctx, gobgp.WatchEventMessageCallbacks{
		OnBestPath:   func(paths []*apiutil.Path, _ time.Time) { post(func() { s.learn(paths) }) },
		OnPathUpdate: func(paths []*apiutil.Path, _ time.Time) { post(func() { s.accept(paths) }) },
		OnPathEor:    func(p *apiutil.Path, _ time.Time) { post(func() { s.told(p.PeerAddress, p.Family) }) },
		OnPeerUpdate: func(e *apiutil.WatchEventMessage_PeerEvent, at time.Time) { post(func() { s.changed(e, at) }) },
	}, gobgp.WatchBestPath(true), gobgp.WatchPostUpdate(false, "", ""), gobgp.WatchEor(true), gobgp.WatchPeer())
}

// stop ends the server and forgets what it was told. What it learned is left until the next one is
// settled.
func (s *Speaker) stop() {
	if s.server == nil {
		return
	}
	s.server.end(s.log)
	s.server = nil
	clear(s.at)
	for prefix, r := range s.routes {
		r.told, r.had = false, false
		s.changedRoutes = append(s.changedRoutes, prefix)
	}
	s.policyDue = true
	for _, p := range s.peers {
		s.down(p, "the speaker began anew")
		p.added = nil
	}
	for prefix := range s.learned {
		s.left[prefix] = true
	}
}

// end ends all that the server does.
func (v *server) end(log *slog.Logger) {
	v.cancel()
	if err := v.StopBgp(context.Background(), &api.StopBgpRequest{AllowGracefulRestart: true}); err != nil {
		log.Warn("the BGP server does not stop as it should", "error", err)
	}
	v.Stop() // what StopBgp leaves
}

// listenable returns the addresses to listen on, without those that the node does not have. It
// fails if one is taken: two speakers with one address break each other's sessions, so that this
// one waits until the other is gone.
func listenable(n *bgp.Settings) (listen []string, absent []netip.Addr, err error) {
	addrs := n.Listen
	if len(addrs) == 0 && n.Port != 0 {
		addrs = []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	}
	for _, a := range addrs {
		switch err := tryListen(a, n.Port); {
		case a.IsUnspecified() && (errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EADDRNOTAVAIL)): // a node without that family
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			absent = append(absent, a)
		case err != nil:
			return nil, nil, err
		default:
			listen = append(listen, a.String())
		}
	}
	return listen, absent, nil
}

func tryListen(a netip.Addr, port uint16) error {
	network := "tcp6"
	if a.Is4() {
		network = "tcp4"
	}
	l, err := net.Listen(network, net.JoinHostPort(a.String(), strconv.Itoa(int(port))))
	if err != nil {
		return err
	}
	return l.Close()
}

// notListening says which addresses are not listened on, and why.
func notListening(absent []netip.Addr, err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Sprintf("no session with any peer: %v: another BGP speaker runs on this node; stop it, or choose another port", err)
	case errors.Is(err, syscall.EACCES):
		return fmt.Sprintf("no session with any peer: %v: give the agent the capability CAP_NET_BIND_SERVICE, or choose a port above 1023", err)
	case err != nil:
		return fmt.Sprintf("no session with any peer: %v", err)
	case len(absent) > 0:
		return fmt.Sprintf("peers cannot connect to %s: this node has no such address", model.Join(absent, ", "))
	}
	return ""
}

func prefixed(prefix string, err error) string {
	if err == nil {
		return ""
	}
	return prefix + err.Error()
}
