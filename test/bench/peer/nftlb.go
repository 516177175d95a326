package peer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"sluice.dev/sluice/internal/accelerate/xdp"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/netns"
)

// Nftlb is Debian's nftlb in the node's namespace; its farms are set through its HTTP API.
type Nftlb struct {
	Mode     FarmMode
	Protocol string // "": tcp
}

// Name implements Dataplane.
func (n Nftlb) Name() string {
	if n.Mode == "" {
		return "nftlb"
	}
	return "nftlb " + string(n.Mode)
}

// Limit implements Dataplane.
func (Nftlb) Limit() (int, string) {
	return 250, "it holds 4,095 backends at most, and its loading time grows with the square (39 s for 1,000 farms)"
}

// NodePorts implements Dataplane.
func (Nftlb) NodePorts() bool { return false }

// Target implements Dataplane.
func (Nftlb) Target(_ cluster.Cluster, first, count int) inject.Target {
	return services(first, count)
}

// Load implements Dataplane. The time includes nftlb's own work: there is no telling it from the
// kernel's.
func (n Nftlb) Load(ctx context.Context, node *netns.NS, c cluster.Cluster) (*Loaded, error) {
	return loadFarms(ctx, node, nil, FarmsOf(c, n.Mode, n.Protocol))
}

// Balance is 'sluice balance' in the node's namespace, with farms that are set through its API.
type Balance struct {
	Program  string // sluice
	Mode     FarmMode
	Protocol string // "": tcp
	XDP      bool   // with --accelerate dsr
}

// Name implements Dataplane.
func (b Balance) Name() string {
	if b.XDP {
		return "sluice " + string(b.Mode) + ", XDP"
	}
	return "sluice " + string(b.Mode)
}

// Limit implements Dataplane.
func (Balance) Limit() (int, string) { return 0, "" }

// NodePorts implements Dataplane.
func (Balance) NodePorts() bool { return false }

// Target implements Dataplane.
func (Balance) Target(_ cluster.Cluster, first, count int) inject.Target {
	return services(first, count)
}

// Load implements Dataplane. The time is that of one request, whose answer means that the kernel
// has the farms.
func (b Balance) Load(ctx context.Context, node *netns.NS, c cluster.Cluster) (*Loaded, error) {
	command := []string{b.Program}
	if b.XDP {
		command = append(command, "--accelerate", xdp.DSR)
	}
	loaded, err := loadFarms(ctx, node, command, FarmsOf(c, b.Mode, b.Protocol))
	if err == nil && b.XDP {
		end := loaded.Close
		loaded.Close = func() error { return errors.Join(end(), node.Do(xdp.Remove)) } // it would outlast both
	}
	return loaded, err
}

// loadFarms starts a program, sluice with these flags of 'balance' or nftlb, and posts farms to it,
// all in one request.
func loadFarms(ctx context.Context, node *netns.NS, sluice []string, farms Farms) (*Loaded, error) {
	var s *FarmServer
	var err error
	if len(sluice) > 0 {
		s, err = StartBalance(ctx, node, sluice[0], sluice[1:]...)
	} else {
		s, err = StartNftlb(ctx, node)
	}
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if _, err := s.Call(ctx, http.MethodPost, "/farms", farms); err != nil {
		return nil, errors.Join(fmt.Errorf("load farms: %w", err), s.Close())
	}
	return &Loaded{Took: time.Since(began), Note: "farms posted, all in one request", Close: s.Close}, nil
}
