package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/internal/bench/chart"
	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/peer"
	"sluice.dev/sluice/internal/bench/testbed"
)

var filling = Experiment{
	Name:  "policy-loading",
	Title: "Loading a block list, and its memory",
	How: "Sluice: a node that runs it gets its first list; the clock runs from before the text file is read (one address a line) until the kernel has acknowledged all of it, in this process. " +
		"The others: how long `ipset restore`, `iptables-restore` and `nft -f` take for the same addresses, in their own form. Each in a new network namespace. " +
		"Memory of Sluice's list is what an agent's control group was charged more than that of an agent without one. An ipset is not charged in whole, " +
		"so what it says of its own size counts (\"Size in memory\").",
	run:   runFilling,
	paint: paintFilling,
}

const (
	listLoading     = "time to load"
	listProgramming = "of it in the kernel"
	listMemory      = "kernel memory of a list"
)

func runFilling(ctx context.Context, r *run) error {
	r.Options.Rounds = min(r.Options.Rounds, 5)
	r.Result.Rounds = r.Options.Rounds
	usual, _ := r.blockSizes()
	if err := r.weighList(ctx, usual); err != nil {
		return err
	}
	notes := map[string]string{}
	for range r.Options.Rounds {
		for _, b := range peer.Blockers() {
			if err := r.loadList(ctx, block{b, ofAddresses, usual}, notes); err != nil {
				return err
			}
		}
	}
	r.note("Sluice, in the last round: %s.", notes[peer.DenyList{}.Name()])
	r.judgeFilling(usual)
	return nil
}

// loadList loads one list into a namespace that it makes and removes.
func (r *run) loadList(ctx context.Context, b block, notes map[string]string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	settle()
	l, err := r.newTestbed()
	if err != nil {
		return err
	}
	blocked, err := b.Block(ctx, l.Node, testbed.NodeIn, b.list())
	if errors.Is(err, peer.ErrMissing) {
		r.skip("load %s: %s", b, err)
		return l.Close()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("load %s: %w", b, err), l.Close())
	}
	r.progress("loaded %s in %s", b, blocked.Took.Round(time.Millisecond))
	r.recordBlock(b, listLoading, "ms", millis(blocked.Took))
	if blocked.Programming > 0 {
		r.recordBlock(b, listProgramming, "ms", millis(blocked.Programming))
	}
	notes[b.Name()] = blocked.Note
	if b.Blocker == (peer.Ipset{}) {
		size, err := ipsetSize(l)
		if err != nil {
			return errors.Join(err, blocked.Close(), l.Close())
		}
		r.recordBlock(b, listMemory, "MB", float64(size)/1e6)
	}
	return errors.Join(blocked.Close(), l.Close())
}

// ipsetSize is the memory that the set says it takes.
func ipsetSize(l *testbed.Testbed) (int, error) {
	out, err := l.Node.Run("ipset", "list", "-t", peer.IpsetName)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(out)) {
		if size, ok := strings.CutPrefix(line, "Size in memory: "); ok {
			return strconv.Atoi(strings.TrimSpace(size))
		}
	}
	return 0, errors.New("read size of ipset: it does not tell")
}

// weighList files what a list takes in the kernel: an agent with it, less one without.
func (r *run) weighList(ctx context.Context, size int) error {
	var bytes [2]int
	for i, n := range []int{0, size} {
		err := r.withSite(ctx, func(s *site) error {
			path := filepath.Join(s.dir, "list.txt")
			f, err := os.Create(path)
			if err != nil {
				return fmt.Errorf("write list: %w", err)
			}
			if err := errors.Join(cluster.WriteEntries(f, cluster.Addresses(n)), f.Close()); err != nil {
				return fmt.Errorf("write list: %w", err)
			}
			node := cluster.NodeFile()
			if err := os.WriteFile(filepath.Join(s.manifests(), node.Name), node.JSON, 0o644); err != nil {
				return fmt.Errorf("write manifests: %w", err)
			}
			s.flags = []string{"--address-list", "bench=" + path, "--deny-list", "bench", "--deny-device", testbed.NodeIn}
			p, err := s.start()
			if err != nil {
				return err
			}
			defer p.kill()
			if _, err := p.ready(ctx, time.Minute); err != nil {
				return err
			}
			if s.group == nil {
				return nil
			}
			// Some buffers of the start are given back a moment later.
			if err := wait(ctx, time.Second); err != nil {
				return err
			}
			bytes[i], err = s.group.kernelBytes()
			return err
		})
		if err != nil {
			return err
		}
	}
	if bytes[1] > 0 {
		r.recordBlock(block{peer.DenyList{}, ofAddresses, size}, listMemory, "MB", float64(bytes[1]-bytes[0])/1e6)
	}
	return nil
}

func (r *run) judgeFilling(usual int) {
	of := func(b peer.Blocker, metric string) *Measurement {
		return r.same(block{b, ofAddresses, usual}.measurement(metric, ""))
	}
	own, theirs := of(peer.DenyList{}, listLoading), of(peer.Ipset{}, listLoading)
	name := chart.Number(float64(usual)) + " addresses"
	if own != nil && theirs != nil {
		ratio := ratios(own, theirs)
		r.goal("loading "+name+", from the file to the kernel's acknowledgement, over `ipset restore`", "≤ 0.5", ratio.String(), ratio.Median <= 0.5)
		if part := of(peer.DenyList{}, listProgramming); part != nil {
			r.note("The part of Sluice's loading that is spent on the kernel, over `ipset restore`: %s.", ratios(part, theirs))
		}
		for _, b := range []peer.Blocker{peer.Rules{}, peer.NftSet{}} {
			if m := of(b, listLoading); m != nil {
				r.note("Sluice's loading over that of %s: %s.", b.Name(), ratios(own, m))
			}
		}
	}
	own, theirs = of(peer.DenyList{}, listMemory), of(peer.Ipset{}, listMemory)
	if own != nil && theirs != nil {
		r.goal("kernel memory for "+name, fmt.Sprintf("≤ ipset's (%s MB here), or the reason", chart.Number(theirs.Median)),
			chart.Number(own.Median)+" MB", own.Median <= theirs.Median)
		r.note("Sluice's list takes %s bytes an address: the kernel gives each element of an nftables set 64 bytes of its own, whatever its key, and a deny list's a place in a table "+
			"of twice as many places as addresses, or more. An ipset packs addresses of four bytes a dozen to a bucket. No set of nftables is smaller.",
			chart.Number(own.Median*1e6/float64(usual)))
	}
}

func paintFilling(r *Result) []painting {
	time := draw(r, "time", chart.Chart{
		Kind: chart.Bars, Title: "Loading a block list into an empty kernel", Subtitle: "from a text file; lower is better",
		XLabel: "addresses", YLabel: "ms",
	}, byAddresses, listLoading, ofAddresses)
	memory := draw(r, "memory", chart.Chart{
		Kind: chart.Bars, Title: "Kernel memory of a block list", Subtitle: "lower is better", XLabel: "addresses", YLabel: "MB",
	}, byAddresses, listMemory, ofAddresses)
	return slices.DeleteFunc([]painting{time, memory}, func(p painting) bool { return len(p.Series) == 0 })
}
