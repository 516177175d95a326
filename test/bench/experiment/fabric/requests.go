package fabric

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/netns"
)

// Requests is the experiment fabric-requests.
var Requests = harness.Experiment{
	Name:  "fabric-requests",
	Title: "Response times through a service on another node",
	How: "The mean of ten HTTP requests, each on a connection of its own, until the connection stands, until the answer's first byte, and until its end: " +
		"from a node to the ClusterIP, from a pod to the service's name, which it finds in /etc/hosts as the lab has no DNS, and from a client outside to the service's LoadBalancer address by the first node. " +
		"The one endpoint is on the other node.",
	Run:    runRequests,
	Charts: requestCharts,
}

// The requests that are measured, and until when.
const (
	fromNode    = "node to ClusterIP"
	fromPod     = "pod to service name"
	fromOutside = "outside to external address"

	connect   = "connect"
	firstByte = "first byte"
	total     = "total"
)

var requestModes = []plan.Fabric{plan.Native, plan.VXLAN}

func runRequests(ctx context.Context, r *harness.Run) error {
	var own []kind
	for _, mode := range requestModes {
		own = append(own, kind{sluice, mode})
	}
	if err := inTurns(ctx, r, own, measureRequests); err != nil {
		return err
	}
	for _, mode := range requestModes {
		node, outside := r.Find(sluice, 0, variant(mode, fromNode), total), r.Find(sluice, 0, variant(mode, fromOutside), total)
		if node != nil && outside != nil {
			got := report.Ratios(outside, node)
			r.Goal(fmt.Sprintf("%s, response time at the external address over that at the ClusterIP from a node (published: 12.5)", mode), "≤ 1.5", got.String(), got.Median <= 1.5)
		}
	}
	return nil
}

func measureRequests(_ context.Context, r *harness.Run, n *network) error {
	for _, way := range []struct {
		name string
		from *netns.NS
		to   netip.Addr
	}{
		{fromNode, n.node1, n.clusterAddr},
		{fromPod, n.client, n.clusterAddr},
		{fromOutside, n.outside, n.externalAddr},
	} {
		const requests = 10
		var sum [3]time.Duration
		for range requests {
			took, err := request(way.from, netip.AddrPortFrom(way.to, 80))
			if err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			for i, d := range took {
				sum[i] += d
			}
		}
		for i, until := range []string{connect, firstByte, total} {
			r.Add(report.Measurement{Dataplane: n.by, Variant: variant(n.mode, way.name), Metric: until, Unit: "ms"}, sum[i].Seconds()*1000/requests)
		}
	}
	return nil
}

// request sends one request, and returns the time until the connection stood, until the answer
// began, and until it ended.
func request(from *netns.NS, to netip.AddrPort) (took [3]time.Duration, err error) {
	err = from.Do(func() error {
		began := time.Now()
		conn, err := net.DialTimeout("tcp", to.String(), 5*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		took[0] = time.Since(began)
		if err := conn.SetDeadline(began.Add(5 * time.Second)); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n"); err != nil {
			return err
		}
		answer := bufio.NewReader(conn)
		if _, err := answer.Peek(1); err != nil {
			return err
		}
		took[1] = time.Since(began)
		_, err = io.Copy(io.Discard, answer)
		took[2] = time.Since(began)
		return err
	})
	return took, err
}

func requestCharts(r *report.Result) []report.Figure {
	c := chart.Chart{Kind: chart.Bars, Title: "Response times through a service on another node", Subtitle: "mean of ten requests, whole answer; lower is better", YLabel: "ms"}
	for _, mode := range requestModes {
		s := chart.Series{Name: string(mode)}
		for _, way := range []string{fromNode, fromPod, fromOutside} {
			if m := r.Find(sluice, 0, variant(mode, way), total); m != nil {
				s.Values = append(s.Values, chart.Value{Y: m.Median, Low: m.Min, High: m.Max})
			}
		}
		c.Series = append(c.Series, s)
	}
	c.Categories = []string{fromNode, fromPod, fromOutside}
	return []report.Figure{{Name: "total", Chart: c}}
}
