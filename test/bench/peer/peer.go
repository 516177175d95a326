// Package peer loads a cluster's services into a node's kernel the way other programs do, so that
// the bench can compare with them on the same machine: kube-proxy's two shapes, written here from
// its public documentation and loaded by the same commands that it uses; nftlb, through its API;
// and plain forwarding, which is the least possible. Sluice is loaded through its own compiler and
// driver.
package peer

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/netns"
)

// ErrMissing is wrapped when the machine lacks what a data plane needs; the message says what to
// install.
var ErrMissing = errors.New("missing")

// Dataplane carries out a cluster's services.
type Dataplane interface {
	Name() string
	// Limit is the greatest possible or practical number of services, and why; 0: any number.
	Limit() (services int, why string)
	// Load programs the cluster into the node's empty kernel and returns when that is done.
	Load(ctx context.Context, node *netns.NS, c cluster.Cluster) (*Loaded, error)
	// NodePorts reports whether it serves a cluster's NodePort.
	NodePorts() bool
	// Target is where flows to services [first, first+count) go.
	Target(c cluster.Cluster, first, count int) inject.Target
}

// Loaded is a programmed data plane. Removing its namespace removes it; Close ends what runs
// outside of the kernel.
type Loaded struct {
	Took  time.Duration // how long programming the kernel took, without preparation
	Note  string        // what the time is made of
	Close func() error  // never nil
}

func loaded(took time.Duration, note string) *Loaded {
	return &Loaded{Took: took, Note: note, Close: func() error { return nil }}
}

// pods are the sources that count as the cluster's own: the generator's. What comes from elsewhere
// is masqueraded, as in a real cluster.
var pods = inject.Sources

// services aims at ClusterIPs, the target of all data planes that translate.
func services(first, count int) inject.Target {
	return inject.Target{Base: cluster.ServiceAddr(0), First: first, Count: count, Port: cluster.ServicePort}
}

// need returns an error that says which package has a missing command.
func need(command, pkg string) error {
	if _, err := exec.LookPath(command); err != nil {
		return fmt.Errorf("%w: %s (apt-get install %s)", ErrMissing, command, pkg)
	}
	return nil
}

// All returns all data planes.
func All() []Dataplane {
	return []Dataplane{Sluice{}, KubeNftables{}, KubeIptables{}, Nftlb{}, Plain{}, Plain{Track: true}}
}

// Plain is forwarding with no service: flows go straight to the endpoints.
type Plain struct {
	Track bool // with connection tracking
}

// Name implements Dataplane.
func (p Plain) Name() string {
	if p.Track {
		return "forwarding+conntrack"
	}
	return "forwarding"
}

// Limit implements Dataplane.
func (Plain) Limit() (int, string) { return 0, "" }

// NodePorts implements Dataplane.
func (Plain) NodePorts() bool { return false }

// Load implements Dataplane.
func (p Plain) Load(_ context.Context, node *netns.NS, _ cluster.Cluster) (*Loaded, error) {
	if !p.Track {
		return loaded(0, "nothing to load"), nil
	}
	if err := need("nft", "nftables"); err != nil {
		return nil, err
	}
	_, err := node.Run("nft", "add table ip track; add chain ip track forward { type filter hook forward priority 0; }; add rule ip track forward ct state invalid drop")
	return loaded(0, "nothing to load"), err
}

// Target implements Dataplane.
func (Plain) Target(c cluster.Cluster, first, count int) inject.Target {
	return inject.Target{
		Base: c.Endpoint(0, 0).Addr(), First: first * c.Endpoints, Count: count * c.Endpoints, Port: cluster.TargetPort,
	}
}
