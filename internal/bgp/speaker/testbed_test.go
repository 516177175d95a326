package speaker_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/bgp/speaker"
	"sluice.dev/sluice/test/peertest"
	"sluice.dev/sluice/test/world"
)

// asSpeaker has this program be a speaker, in a namespace and a process of its own.
const asSpeaker = "SLUICE_TEST_SPEAKER"

func TestMain(m *testing.M) {
	if os.Getenv(asSpeaker) == "" {
		// The tests wait for BGP's timers more than they compute.
		flag.Parse()
		if err := flag.Set("test.parallel", "8"); err != nil {
			panic(err)
		}
		os.Exit(m.Run())
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	if err := speaker.New(log).Run(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// patience bounds every wait; the machine may have much else to do.
const patience = 90 * time.Second

// wire is a node and its neighbours, each on a subnet of its own with the node.
type wire struct {
	t     *testing.T
	ns    *world.Host
	peers map[int]*world.Host
}

func newWire(t *testing.T) *wire {
	t.Helper()
	return &wire{t: t, ns: world.NewHost(t, "node"), peers: map[int]*world.Host{}}
}

// The addresses of the node, and of its neighbour, on subnet i.
func node4(i int) string { return fmt.Sprintf("10.7.%d.1", i) }
func peer4(i int) string { return fmt.Sprintf("10.7.%d.2", i) }
func node6(i int) string { return fmt.Sprintf("fd07:%d::1", i) }
func peer6(i int) string { return fmt.Sprintf("fd07:%d::2", i) }

// neighbor returns neighbour i, which it makes at first.
func (w *wire) neighbor(i int) *world.Host {
	w.t.Helper()
	if ns := w.peers[i]; ns != nil {
		return ns
	}
	ns := world.NewHost(w.t, fmt.Sprintf("peer%d", i))
	w.peers[i] = ns
	here := fmt.Sprintf("eth%d", i)
	w.ns.Join(here, ns, "eth0")
	w.ns.Address(here, node4(i)+"/24", node6(i)+"/64")
	ns.Address("eth0", peer4(i)+"/24", peer6(i)+"/64")
	return ns
}

// dir is a folder with a path short enough for sockets.
func (w *wire) dir() string {
	w.t.Helper()
	dir, err := os.MkdirTemp("", "spk")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// frr starts FRR as neighbour i.
func (w *wire) frr(i int, conf string) *peertest.FRR {
	w.t.Helper()
	f, err := peertest.StartFRR(w.t.Context(), w.neighbor(i).NS, w.dir(), conf)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if w.t.Failed() {
			w.t.Logf("neighbour %d, bgpd:\n%s", i, f.Log())
		}
		if err := f.Stop(); err != nil {
			w.t.Error(err)
		}
	})
	return f
}

// bird starts BIRD as neighbour i.
func (w *wire) bird(i int, conf string) *peertest.BIRD {
	w.t.Helper()
	b, err := peertest.StartBIRD(w.t.Context(), w.neighbor(i).NS, w.dir(), conf)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := b.Kill(); err != nil {
			w.t.Error(err)
		}
	})
	return b
}

// speaking is a running speaker, and all that it has reported.
type speaking struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	ended chan struct{}
	log   bytes.Buffer // to be read once it ended

	mu      sync.Mutex
	changed chan struct{} // closed with the next report
	said
}

// said is the sum of the Reports.
type said struct {
	learned map[netip.Prefix]*bgp.Learned
	peers   map[string]*bgp.PeerStatus
	settled bool
	fault   string
	lines   int
	gone    []netip.Prefix // that were learned once, or more often
}

// speaker starts a speaker on the node.
func (w *wire) speaker() *speaking {
	w.t.Helper()
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	s := &speaking{t: w.t, cmd: exec.Command(self), ended: make(chan struct{}), changed: make(chan struct{})}
	s.learned, s.peers = map[netip.Prefix]*bgp.Learned{}, map[string]*bgp.PeerStatus{}
	s.cmd.Env = append(os.Environ(), asSpeaker+"=1")
	s.cmd.Stderr = &s.log
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		s.in, err = s.cmd.StdinPipe()
	}
	if err == nil {
		err = w.ns.Start(s.cmd)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	go s.read(out)
	w.t.Cleanup(func() {
		s.end()
		if w.t.Failed() {
			w.t.Logf("the speaker:\n%s", s.log.String())
		}
	})
	return s
}

// end ends the speaker's input, and waits for it to end.
func (s *speaking) end() {
	_ = s.in.Close()
	<-s.ended
}

func (s *speaking) read(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var r bgp.Report
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			s.t.Errorf("report %q: %v", lines.Text(), err)
			continue
		}
		s.add(&r)
	}
	_ = s.cmd.Wait()
	close(s.ended)
}

func (s *speaking) add(r *bgp.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, l := range r.Learned {
		if l == nil {
			s.gone = append(s.gone, p)
		}
	}
	maps.Copy(s.learned, r.Learned)
	maps.DeleteFunc(s.learned, func(_ netip.Prefix, l *bgp.Learned) bool { return l == nil })
	maps.Copy(s.peers, r.Peers)
	maps.DeleteFunc(s.peers, func(_ string, p *bgp.PeerStatus) bool { return p == nil })
	s.settled, s.fault = s.settled || r.Settled, r.Error
	s.lines++
	close(s.changed)
	s.changed = make(chan struct{})
}

// order gives an order.
func (s *speaking) order(o *bgp.Order) {
	s.t.Helper()
	b, err := json.Marshal(o)
	if err == nil {
		_, err = s.in.Write(append(b, '\n'))
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// await waits until what the speaker has reported is as it should be.
func (s *speaking) await(what string, is func(*said) bool) {
	s.t.Helper()
	timeout := time.After(patience)
	for {
		s.mu.Lock()
		ok, changed := is(&s.said), s.changed
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-s.ended:
			s.t.Fatalf("%s: the speaker ended", what)
		case <-timeout:
			s.mu.Lock()
			defer s.mu.Unlock()
			b, _ := json.Marshal(map[string]any{"learned": s.learned, "peers": s.peers, "settled": s.settled, "error": s.fault})
			s.t.Fatalf("%s: not in time; it says %s", what, b)
		}
	}
}

// up waits for sessions.
func (s *speaking) up(names ...string) {
	s.t.Helper()
	for _, name := range names {
		s.await("session with "+name, func(x *said) bool { return x.peers[name] != nil && x.peers[name].State == "established" })
	}
}

// eventually waits until a question of another program has the right answer.
func eventually(t *testing.T, what string, ask func() (string, error), is func(string) bool) string {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(patience)
	for {
		out, err := ask()
		if err == nil && is(out) {
			return out
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("%s: not in time: %s %v", what, out, err)
		}
	}
}

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func contains(s string) func(string) bool {
	return func(out string) bool { return strings.Contains(out, s) }
}
func lacks(s string) func(string) bool {
	return func(out string) bool { return !strings.Contains(out, s) }
}

// settings of the node.
func settings() *bgp.Settings {
	return &bgp.Settings{AS: 64512, RouterID: addr("10.7.0.1"), Port: 179, Restart: 60 * time.Second}
}

// peer is neighbour i, of another AS, with which both families are exchanged over IPv4.
func peer(i int) *bgp.Peer {
	return &bgp.Peer{
		Address: addr(peer4(i)), Port: 179, AS: 64600 + uint32(i), Retry: 2 * time.Second, IPv4: true, IPv6: true, Restart: true,
	}
}

// routes are prefixes that are announced to all, with nothing.
func routes(prefixes ...string) map[netip.Prefix]*bgp.Route {
	all := map[netip.Prefix]*bgp.Route{}
	for _, p := range prefixes {
		all[prefix(p)] = &bgp.Route{Announcements: []bgp.Announcement{{}}}
	}
	return all
}

// frrConf is that of neighbour i, which announces some prefixes; extra goes to the router's part.
func frrConf(i int, prefixes []string, extra ...string) string {
	n := node4(i)
	var four, six strings.Builder
	for _, p := range prefixes {
		if strings.Contains(p, ":") {
			fmt.Fprintf(&six, "  network %s\n", p)
		} else {
			fmt.Fprintf(&four, "  network %s\n", p)
		}
	}
	return fmt.Sprintf(`
frr defaults traditional
router bgp %[1]d
 bgp router-id %[2]s
 no bgp ebgp-requires-policy
 no bgp network import-check
 no bgp default ipv4-unicast
 bgp graceful-restart
 bgp graceful-restart preserve-fw-state
 neighbor %[3]s remote-as 64512
 neighbor %[3]s timers connect 2
 %[6]s
 address-family ipv4 unicast
%[4]s  neighbor %[3]s activate
  neighbor %[3]s soft-reconfiguration inbound
 exit-address-family
 address-family ipv6 unicast
%[5]s  neighbor %[3]s activate
  neighbor %[3]s soft-reconfiguration inbound
 exit-address-family
`, 64600+i, peer4(i), n, four.String(), six.String(), strings.Join(extra, "\n "))
}
