package policy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/bench/testbed"
)

// Loading is the experiment policy-loading.
var Loading = harness.Experiment{
	Name:  "policy-loading",
	Title: "Loading a block list, and its memory",
	How: "Sluice: a running node gets its first list. The time is from before the text file is read (one address a line) until the kernel has acknowledged all of it, in this process. " +
		"The others: how long `ipset restore`, `iptables-restore` and `nft -f` take for the same addresses, in their own form, and how long an XDP program's map takes to fill. Each in a new network namespace. " +
		"Memory of Sluice's list is what an agent's control group was charged more than that of an agent without one. The kernel does not charge all of an ipset, " +
		"so for lists in ipsets, also those of mode iptables, the size that the sets themselves report counts (\"Size in memory\"); that of XDP is what its map reports.",
	Run:    runLoading,
	Charts: loadingCharts,
}

const (
	listLoading     = "time to load"
	listProgramming = "of it in the kernel"
	listMemory      = "kernel memory of a list"
)

func runLoading(ctx context.Context, r *harness.Run) error {
	r.Options.Rounds = min(r.Options.Rounds, 5)
	r.Result.Rounds = r.Options.Rounds
	usual, _ := listSizes(r)
	if err := measureListMemory(ctx, r, usual); err != nil {
		return err
	}
	notes := map[string]string{}
	for range r.Options.Rounds {
		for _, b := range peer.Blockers() {
			if err := loadList(ctx, r, listCase{b, ofAddresses, usual}, notes); err != nil {
				return err
			}
		}
	}
	r.Note("Sluice, in the last round: %s.", notes[peer.DenyList{}.Name()])
	loadingGoals(r, usual)
	return nil
}

// loadList loads one list into a namespace that it makes and removes.
func loadList(ctx context.Context, r *harness.Run, b listCase, notes map[string]string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	harness.Settle()
	l, err := r.NewTestbed()
	if err != nil {
		return err
	}
	blocked, err := b.Block(ctx, l.Node, testbed.NodeIn, b.list())
	if errors.Is(err, peer.ErrMissing) {
		r.Skip("load %s: %s", b, err)
		return l.Close()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("load %s: %w", b, err), l.Close())
	}
	r.Logf("loaded %s in %s", b, blocked.Took.Round(time.Millisecond))
	recordList(r, b, listLoading, "ms", harness.Millis(blocked.Took))
	if blocked.Programming > 0 {
		recordList(r, b, listProgramming, "ms", harness.Millis(blocked.Programming))
	}
	notes[b.Name()] = blocked.Note
	if blocked.Memory > 0 {
		recordList(r, b, listMemory, "MB", float64(blocked.Memory)/1e6)
	}
	return errors.Join(blocked.Close(), l.Close())
}

// measureListMemory records what a list takes in the kernel: an agent with the list less an agent
// without.
func measureListMemory(ctx context.Context, r *harness.Run, size int) error {
	var bytes [2]int
	for i, n := range []int{0, size} {
		err := r.WithSite(ctx, func(s *harness.Site) error {
			path := filepath.Join(s.Dir, "list.txt")
			f, err := os.Create(path)
			if err != nil {
				return fmt.Errorf("write list: %w", err)
			}
			if err := errors.Join(cluster.WriteEntries(f, cluster.Addresses(n)), f.Close()); err != nil {
				return fmt.Errorf("write list: %w", err)
			}
			node := cluster.NodeFile()
			if err := os.WriteFile(filepath.Join(s.Manifests(), node.Name), node.JSON, 0o644); err != nil {
				return fmt.Errorf("write manifests: %w", err)
			}
			s.Flags = []string{"--address-list", "bench=" + path, "--deny-list", "bench", "--deny-device", testbed.NodeIn}
			p, err := s.Start()
			if err != nil {
				return err
			}
			defer p.Kill()
			if _, err := p.Ready(ctx, time.Minute); err != nil {
				return err
			}
			if s.Group == nil {
				return nil
			}
			// The kernel frees some buffers of the start a moment later.
			if err := harness.Wait(ctx, time.Second); err != nil {
				return err
			}
			bytes[i], err = s.Group.KernelBytes()
			return err
		})
		if err != nil {
			return err
		}
	}
	if bytes[1] > 0 {
		recordList(r, listCase{peer.DenyList{}, ofAddresses, size}, listMemory, "MB", float64(bytes[1]-bytes[0])/1e6)
	}
	return nil
}

func loadingGoals(r *harness.Run, usual int) {
	of := func(b peer.Blocker, metric string) *report.Measurement {
		return r.Same(listCase{b, ofAddresses, usual}.measurement(metric, ""))
	}
	own, theirs := of(peer.DenyList{}, listLoading), of(peer.Ipset{}, listLoading)
	name := chart.Number(float64(usual)) + " addresses"
	if own != nil && theirs != nil {
		ratio := report.Ratios(own, theirs)
		r.Goal("loading "+name+", from the file to the kernel's acknowledgement, over `ipset restore`", "≤ 0.5", ratio.String(), ratio.Median <= 0.5)
		if part := of(peer.DenyList{}, listProgramming); part != nil {
			r.Note("The part of Sluice's loading that is spent on the kernel, over `ipset restore`: %s.", report.Ratios(part, theirs))
		}
		for _, b := range []peer.Blocker{peer.DenyList{Mode: peer.IptablesLegacy}, peer.Rules{}, peer.NftSet{}, peer.XDP{}} {
			if m := of(b, listLoading); m != nil {
				r.Note("Sluice's loading over that of %s: %s.", b.Name(), report.Ratios(own, m))
			}
		}
	}
	own, theirs = of(peer.DenyList{}, listMemory), of(peer.Ipset{}, listMemory)
	if own != nil && theirs != nil {
		r.Goal("kernel memory for "+name, fmt.Sprintf("≤ ipset's (%s MB here), or the reason", chart.Number(theirs.Median)),
			chart.Number(own.Median)+" MB", own.Median <= theirs.Median)
		r.Note("Sluice's list takes %s bytes an address: the kernel gives each element of an nftables set 64 bytes of its own, whatever its key, and a deny list's a place in a table "+
			"of twice as many places as addresses, or more. An ipset packs addresses of four bytes a dozen to a bucket. No set of nftables is smaller.",
			chart.Number(own.Median*1e6/float64(usual)))
	}
}

func loadingCharts(r *report.Result) []report.Figure {
	time := report.Draw(r, "time", chart.Chart{
		Kind: chart.Bars, Title: "Loading a block list into an empty kernel", Subtitle: "from a text file; lower is better",
		XLabel: "addresses", YLabel: "ms",
	}, report.ByAddresses, listLoading, ofAddresses)
	memory := report.Draw(r, "memory", chart.Chart{
		Kind: chart.Bars, Title: "Kernel memory of a block list", Subtitle: "lower is better", XLabel: "addresses", YLabel: "MB",
	}, report.ByAddresses, listMemory, ofAddresses)
	return slices.DeleteFunc([]report.Figure{time, memory}, func(p report.Figure) bool { return len(p.Series) == 0 })
}
