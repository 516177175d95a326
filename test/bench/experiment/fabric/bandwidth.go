package fabric

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/load"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/netns"
)

// Bandwidth is the experiment fabric-bandwidth.
var Bandwidth = harness.Experiment{
	Name:  "fabric-bandwidth",
	Title: "Bandwidth between pods of two nodes, over that between the nodes",
	How: "One TCP stream of iperf3 from node to node, from a pod to a pod of the other node, and from a node to a pod of the other, in each mode, one shortly after the other. " +
		"All of it are namespaces of one machine with an MTU of 1,500, so both ends and the way between cost CPU that the other parts lack. " +
		"The sender is on one CPU and the receiver on another. A gigabyte is sent by one thread that is client and server, whose CPU time counts. By hand: routes, tunnels as flannel or an administrator makes them, and nothing else on the nodes.",
	Run:    runBandwidth,
	Charts: bandwidthCharts,
}

const (
	bandwidth = "bandwidth"
	gigabyte  = "CPU time of a gigabyte"

	copyPort = 5202
)

// The ways that are measured.
const (
	nodeNode = "node to node"
	podPod   = "pod to pod"
	nodePod  = "node to pod"
)

// published are the ratios to node to node of a published measurement of a Calico cluster.
var published = map[plan.Fabric]map[string]float64{
	plan.Native: {podPod: 0.96, nodePod: 0.98},
	plan.VXLAN:  {podPod: 0.34, nodePod: 0.94},
	plan.IPIP:   {podPod: 0.43, nodePod: 0.97},
}

// goals are what we want to reach.
var goals = map[plan.Fabric]map[string]float64{
	plan.Native: {podPod: 0.98, nodePod: 0.98},
	plan.VXLAN:  {podPod: 0.8, nodePod: 0.98},
	plan.IPIP:   {podPod: 0.8, nodePod: 0.98},
}

var modes = []plan.Fabric{plan.Native, plan.VXLAN, plan.IPIP}

func runBandwidth(ctx context.Context, r *harness.Run) error {
	if _, err := exec.LookPath("iperf3"); err != nil {
		return fmt.Errorf("%w: iperf3", peer.ErrMissing)
	}
	if err := inTurns(ctx, r, kinds(r, modes...), measureBandwidth); err != nil {
		return err
	}
	for _, mode := range modes {
		for _, way := range []string{podPod, nodePod} {
			if own := ratio(r.Result, kind{sluice, mode}, way); own.Median > 0 {
				goal := goals[mode][way]
				what := fmt.Sprintf("%s, %s, over node to node (published: %.2f)", mode, way, published[mode][way])
				r.Goal(what, fmt.Sprintf("≥ %.2f", goal), own.String(), own.Median >= goal)
				r.Note("%s, %s, by hand: %s of node to node.", mode, way, ratio(r.Result, kind{byHand, mode}, way))
			}
		}
		for _, metric := range []string{bandwidth, gigabyte} {
			own, fast, hand := r.Find(sluice, 0, variant(mode, podPod), metric), r.Find(accelerated, 0, variant(mode, podPod), metric), r.Find(byHand, 0, variant(mode, podPod), metric)
			if own == nil || fast == nil || hand == nil {
				continue
			}
			got, what := report.Ratios(fast, hand), fmt.Sprintf("%s, %s, %s over the same by hand", mode, podPod, metric)
			if metric == bandwidth {
				r.Goal(what+", with --accelerate established", "≥ 1.00", got.String(), got.Median >= 1)
			} else {
				r.Goal(what+", with --accelerate established", "≤ 1.00", got.String(), got.Median <= 1)
			}
			r.Note("%s, without it: %s.", what, report.Ratios(own, hand))
		}
	}
	return nil
}

func measureBandwidth(ctx context.Context, r *harness.Run, n *network) error {
	for _, way := range []struct {
		name     string
		from, to *netns.NS
		addr     netip.Addr
	}{
		{nodeNode, n.node1, n.node2, n.node2Addr},
		{podPod, n.client, n.server, n.serverAddr},
		{nodePod, n.node1, n.server, n.serverAddr},
	} {
		bits, err := iperf(ctx, way.from, way.to, way.addr, r.Short(2*time.Second, time.Second))
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		r.Add(report.Measurement{Dataplane: n.by, Variant: variant(n.mode, way.name), Metric: bandwidth, Unit: "Gbit/s"}, bits/1e9)
	}
	const times = 5
	var each []float64
	for range times {
		copied, err := load.Copy(ctx, load.CopyConfig{
			Client: n.client, Backend: n.server, Target: netip.AddrPortFrom(n.serverAddr, copyPort), Port: copyPort, Duration: r.Short(200*time.Millisecond, 50*time.Millisecond),
		})
		if err != nil {
			return err
		}
		each = append(each, copied.CPU.Seconds()*1e3/float64(copied.Bytes)*1e9)
	}
	r.Add(report.Measurement{Dataplane: n.by, Variant: variant(n.mode, podPod), Metric: gigabyte, Unit: "ms"}, report.SpreadOf(each).Median)
	return nil
}

func variant(mode plan.Fabric, way string) string { return string(mode) + ", " + way }

// ratio is a way's bandwidth over that from node to node in the same network.
func ratio(r *report.Result, k kind, way string) report.Spread {
	own, base := r.Find(k.by, 0, variant(k.mode, way), bandwidth), r.Find(k.by, 0, variant(k.mode, nodeNode), bandwidth)
	if own == nil || base == nil {
		return report.Spread{}
	}
	return report.Ratios(own, base)
}

// iperf returns the bandwidth of one stream, in bits a second that arrive.
func iperf(ctx context.Context, from, to *netns.NS, addr netip.Addr, d time.Duration) (bits float64, err error) {
	const port = "5201"
	server := exec.CommandContext(ctx, "iperf3", "--server", "--one-off", "--forceflush", "--bind", addr.String(), "--port", port, "--affinity", "1")
	out, err := server.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := to.Start(server); err != nil {
		return 0, fmt.Errorf("start iperf3: %w", err)
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), "listening") {
	}
	var report struct {
		Error string
		End   struct {
			SumReceived struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	var data []byte
	err = from.Do(func() (err error) {
		data, err = exec.CommandContext(ctx, "iperf3", "--client", addr.String(), "--port", port, "--affinity", "0", "--json",
			"--time", fmt.Sprintf("%.0f", d.Seconds())).Output()
		return err
	})
	if jerr := json.Unmarshal(data, &report); jerr != nil {
		return 0, errors.Join(err, jerr)
	}
	if report.Error != "" {
		return 0, errors.New("iperf3: " + report.Error)
	}
	return report.End.SumReceived.BitsPerSecond, err
}

func bandwidthCharts(r *report.Result) []report.Figure {
	c := chart.Chart{
		Kind: chart.Bars, Title: "Bandwidth over that from node to node", Subtitle: "one TCP stream, MTU 1,500; higher is better", YLabel: "ratio",
		Series: []chart.Series{{Name: "Sluice"}, {Name: "Sluice, established"}, {Name: "by hand"}, {Name: "published, Calico"}},
	}
	for _, mode := range modes {
		for _, way := range []string{podPod, nodePod} {
			own := ratio(r, kind{sluice, mode}, way)
			if own.Median == 0 {
				continue
			}
			c.Categories = append(c.Categories, variant(mode, way))
			for i, s := range []report.Spread{own, ratio(r, kind{accelerated, mode}, way), ratio(r, kind{byHand, mode}, way), {Median: published[mode][way], Min: published[mode][way], Max: published[mode][way]}} {
				c.Series[i].Values = append(c.Series[i].Values, chart.Value{Y: s.Median, Low: s.Min, High: s.Max})
			}
		}
	}
	return []report.Figure{{Name: "ratio", Chart: c}}
}
