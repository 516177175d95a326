package fabric

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/peertest"
)

// BGP is the experiment fabric-bgp.
var BGP = harness.Experiment{
	Name:  "fabric-bgp",
	Title: "BGP routes to the kernel",
	How: "From the moment at which a peer, BIRD, begins to announce 10,000 routes over an established session to the last of them in the kernel, and from their withdrawal until the last is gone. " +
		"The node runs Sluice's agent with its speaker, or BIRD.",
	Run:    runBGP,
	Charts: bgpCharts,
}

const (
	learned   = "10,000 routes, learned"
	withdrawn = "10,000 routes, withdrawn"
	bird      = "BIRD 2"

	bgpRoutes = 10_000
)

func runBGP(ctx context.Context, r *harness.Run) error {
	for _, program := range []string{"bird", "birdc"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w: %s (apt-get install bird2)", peer.ErrMissing, program)
		}
	}
	for round := range r.Options.Rounds {
		for _, by := range []string{sluice, bird} {
			r.Logf("round %d of %d: %s", round+1, r.Options.Rounds, by)
			up, down, err := measureBGP(ctx, r, by)
			if err != nil {
				return fmt.Errorf("%s: %w", by, err)
			}
			r.Add(report.Measurement{Dataplane: by, Metric: learned, Unit: "ms"}, up.Seconds()*1000)
			r.Add(report.Measurement{Dataplane: by, Metric: withdrawn, Unit: "ms"}, down.Seconds()*1000)
		}
	}
	if m := r.Find(sluice, 0, "", learned); m != nil {
		got := report.SpreadOf(m.Samples)
		r.Goal("10,000 BGP routes, learned to kernel", "≤ 1,000 ms", got.String()+" ms", got.Median <= 1000)
	}
	return nil
}

// The two ends of the session.
var (
	farAddr  = netip.MustParseAddr("192.0.2.1")
	nodeSelf = netip.MustParseAddr("192.0.2.2")
)

// measureBGP has a node learn routes, and lose them.
func measureBGP(ctx context.Context, r *harness.Run, by string) (up, down time.Duration, err error) {
	prefix := r.NextPrefix()
	far, err := netns.New(prefix + "-far")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, far.Delete()) }()
	node, err := netns.New(prefix + "-node")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, node.Delete()) }()
	err = errors.Join(netns.Veth(far, "eth0", node, "eth0"),
		commands(far, fmt.Sprintf("ip address add %s/24 dev eth0", farAddr)), commands(node, fmt.Sprintf("ip address add %s/24 dev eth0", nodeSelf)))
	if err != nil {
		return 0, 0, err
	}
	source, err := startBIRD(ctx, far, farConfig())
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, source.stop()) }()
	stop, err := learner(ctx, r, by, node)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := source.established(ctx); err != nil {
		return 0, 0, err
	}
	if up, err = source.until(ctx, node, "enable", unix.RTM_NEWROUTE); err != nil {
		return 0, 0, err
	}
	down, err = source.until(ctx, node, "disable", unix.RTM_DELROUTE)
	return up, down, err
}

// farConfig has BIRD announce the routes once they are enabled.
func farConfig() string {
	var b strings.Builder
	fmt.Fprintf(&b, "router id %s;\nprotocol device {}\nprotocol static many {\n  disabled;\n  ipv4;\n", farAddr)
	for i := range bgpRoutes {
		fmt.Fprintf(&b, "  route 100.64.%d.%d/32 blackhole;\n", i>>8, i&255)
	}
	fmt.Fprintf(&b, "}\nprotocol bgp node {\n  local %s as 64512;\n  neighbor %s as 64512;\n  passive;\n  direct;\n  ipv4 { import none; export all; next hop self; };\n}\n", farAddr, nodeSelf)
	return b.String()
}

// learner starts what learns the routes.
func learner(ctx context.Context, r *harness.Run, by string, node *netns.NS) (stop func() error, err error) {
	if by == bird {
		b, err := startBIRD(ctx, node, fmt.Sprintf("router id %s;\nprotocol device {}\nprotocol kernel { ipv4 { export all; }; }\n"+
			"protocol bgp far {\n  local %s as 64512;\n  neighbor %s as 64512;\n  direct;\n  connect retry time 1;\n  connect delay time 1;\n  ipv4 { import all; export none; };\n}\n", nodeSelf, nodeSelf, farAddr))
		if err != nil {
			return nil, err
		}
		return b.stop, nil
	}
	site, err := r.NewSite(node)
	if err != nil {
		return nil, err
	}
	site.Flags = []string{"--fabric", "native", "--bgp"}
	object := func(version, kind, name, rest string) cluster.File {
		return cluster.File{Name: kind + ".json", JSON: fmt.Appendf(nil, `{"apiVersion": %q, "kind": %q, "metadata": {"name": %q}, %s}`, version, kind, name, rest)}
	}
	files := []cluster.File{
		object("v1", "Node", cluster.Node, fmt.Sprintf(`"spec": {"podCIDRs": ["10.244.1.0/24"]}, "status": {"addresses": [{"type": "InternalIP", "address": %q}]}`, nodeSelf)),
		object("projectcalico.org/v3", "BGPConfiguration", "default", `"spec": {"nodeToNodeMeshEnabled": false}`),
		object("projectcalico.org/v3", "BGPPeer", "far", fmt.Sprintf(`"spec": {"peerIP": %q, "asNumber": 64512}`, farAddr)),
	}
	err = site.Fill(slices.Values(files))
	if err != nil {
		return nil, errors.Join(err, site.Close())
	}
	a, err := site.Start()
	if err != nil {
		return nil, errors.Join(err, site.Close())
	}
	return func() error { a.Kill(); return site.Close() }, nil
}

// routeServer is a BIRD with a folder of its own.
type routeServer struct {
	*peertest.BIRD
	dir string
}

// startBIRD starts BIRD with a configuration. Stop it.
func startBIRD(ctx context.Context, ns *netns.NS, config string) (*routeServer, error) {
	dir, err := os.MkdirTemp("", "bird-*")
	if err != nil {
		return nil, err
	}
	b, err := peertest.StartBIRD(ctx, ns, dir, config)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &routeServer{b, dir}, nil
}

func (b *routeServer) stop() error { return errors.Join(b.Kill(), os.RemoveAll(b.dir)) }

// bgpPatience bounds the wait for a session, and for its routes.
const bgpPatience = time.Minute

// established returns once BIRD has a session with the node.
func (b *routeServer) established(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bgpPatience)
	defer cancel()
	for {
		out, err := b.Run("show protocols node")
		if err == nil && strings.Contains(out, "Established") {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no session is established within %s: %s, %w", bgpPatience, out, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// until enables or disables the routes, and returns how long it took until the node's kernel had
// told of so many that came or went.
func (b *routeServer) until(ctx context.Context, node *netns.NS, what string, kind uint16) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, bgpPatience)
	defer cancel()
	updates := make(chan netlink.RouteUpdate, bgpRoutes)
	var lost error
	err := node.Do(func() error {
		return netlink.RouteSubscribeWithOptions(updates, ctx.Done(), netlink.RouteSubscribeOptions{
			ReceiveBufferSize: 64 << 20, ReceiveBufferForceSize: true, ErrorCallback: func(err error) { lost = err },
		})
	})
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err := b.Run(what + " many"); err != nil {
		return 0, err
	}
	for seen := map[string]bool{}; len(seen) < bgpRoutes; {
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("after %s the kernel has told of %d of %d routes", bgpPatience, len(seen), bgpRoutes)
		case u, ok := <-updates:
			if !ok {
				return 0, fmt.Errorf("routing messages were lost: %w", lost)
			}
			if u.Type == kind && u.Dst != nil {
				seen[u.Dst.String()] = true
			}
		}
	}
	return time.Since(began), nil
}

func bgpCharts(r *report.Result) []report.Figure {
	c := chart.Chart{Kind: chart.Bars, LogY: true, Title: "10,000 BGP routes to the kernel", Subtitle: "lower is better", YLabel: "ms (logarithmic)", Categories: []string{learned, withdrawn}}
	for _, by := range []string{sluice, bird} {
		series := chart.Series{Name: by}
		for _, metric := range c.Categories {
			series.Values = append(series.Values, report.ValueOf(r.Find(by, 0, "", metric)))
		}
		c.Series = append(c.Series, series)
	}
	return []report.Figure{{Name: "routes", Chart: c}}
}
