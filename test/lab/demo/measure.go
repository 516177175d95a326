package demo

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/lab"
)

// changes is what a node's agent has measured: how many changes it has programmed, and the sum of
// the times from when it had read each to the kernel's acknowledgement.
type changes struct {
	count int
	total time.Duration
}

// metricsAt is where agents serve their metrics, on their node.
const metricsAt = "http://127.0.0.1:10249/metrics"

// pollTime is the time between two looks at metrics.
const pollTime = 10 * time.Millisecond

// measured reads what a node's agent has measured, until ctx ends if it does not serve its metrics
// yet.
func measured(ctx context.Context, l *lab.Lab, node string) (c changes, err error) {
	text, err := get(ctx, l.NodeNS(node), metricsAt)
	for ; err != nil; text, err = get(ctx, l.NodeNS(node), metricsAt) {
		select {
		case <-ctx.Done():
			return c, fmt.Errorf("read the metrics of %s: %w", node, err)
		case <-time.After(pollTime):
		}
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		v, err := strconv.ParseFloat(value, 64)
		switch {
		case err != nil:
		case name == "sluice_change_seconds_count":
			c.count = int(v)
		case name == "sluice_change_seconds_sum":
			c.total = time.Duration(v * float64(time.Second))
		}
	}
	return c, nil
}

// onNodes lists times by node, or only the shortest and the longest of many.
func onNodes(times map[string]time.Duration) string {
	const most = 3
	if len(times) > most {
		all := slices.Sorted(maps.Values(times))
		return fmt.Sprintf("%s to %s (%s)", span(all[0]), span(all[len(all)-1]), model.Count(len(all), "node"))
	}
	var texts []string
	for _, node := range slices.Sorted(maps.Keys(times)) {
		texts = append(texts, span(times[node])+" ("+node+")")
	}
	return strings.Join(texts, ", ")
}

// measure makes a change and says how long the agents that programmed it took for it, by their own
// clocks: from when they had read it to the kernel's acknowledgement.
func (s *story) measure(ctx context.Context, change func() error) (took string, err error) {
	ctx, cancel := context.WithTimeout(ctx, tellTime)
	defer cancel()
	before := map[string]changes{}
	for _, n := range s.lab.Cluster.Nodes {
		if before[n.Name], err = measured(ctx, s.lab, n.Name); err != nil {
			return "", err
		}
	}
	if err := change(); err != nil {
		return "", err
	}
	for {
		times := map[string]time.Duration{}
		for node, b := range before {
			now, err := measured(ctx, s.lab, node)
			if err != nil {
				return "", err
			}
			if now.count > b.count {
				times[node] = now.total - b.total // their sum, should there be several
			}
		}
		if len(times) > 0 {
			return onNodes(times), nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("wait until an agent has measured the change: %w", ctx.Err())
		case <-time.After(pollTime):
		}
	}
}
