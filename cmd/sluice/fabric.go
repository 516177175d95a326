package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/fabric/heard"
	fabric "sluice.dev/sluice/internal/fabric/kernel"
	"sluice.dev/sluice/internal/fabric/pathmtu"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/preflight"
)

// fabricFlags say how this node reaches the pods of others.
type fabricFlags struct{ encrypt bool }

func (f *fabricFlags) register(fl *pflag.FlagSet, c *compile.Config) {
	fl.Var(fabricMode{c}, "fabric", "reach the pods of other nodes: off, or as IPPools say, and for addresses that none has: pools (not at all), native, vxlan, ipip or cross-subnet")
	fl.BoolVar(&c.NATOutgoing, "nat-outgoing", false, "with --fabric: what pods send to addresses outside of --cluster-cidr, which it needs, gets this node's address, as with natOutgoing of an IPPool")
	fl.BoolVar(&f.encrypt, "encrypt", false, "with --fabric: encrypt what goes to pods of other nodes that do so, too, by WireGuard; with a Kubernetes API it needs the right to patch nodes")
}

// complete checks the flags together, once they are read.
func (f *fabricFlags) complete(c *compile.Config) error {
	if c.NATOutgoing && (!c.Fabric || len(c.ClusterCIDRs) == 0) {
		return cli.Usage(errors.New("--nat-outgoing needs --fabric and --cluster-cidr"))
	}
	if f.encrypt && !c.Fabric {
		return cli.Usage(errors.New("--encrypt needs --fabric"))
	}
	for _, p := range c.Pools {
		p.NATOutgoing = c.NATOutgoing
	}
	return nil
}

// fabricMode is the flag that says how this node reaches the pods of others.
type fabricMode struct{ of *compile.Config }

// fabricModes are what it can be, except for "off" and "pools": what holds for addresses of each
// family that no IPPool has.
var fabricModes = map[string][2]model.IPPool{
	"native":       {},
	"vxlan":        {{VXLAN: model.Always}, {VXLAN: model.Always}},
	"ipip":         {{IPIP: model.Always}, {}},
	"cross-subnet": {{VXLAN: model.CrossSubnet}, {VXLAN: model.CrossSubnet}},
}

var fabricNames = []string{"off", "pools", "native", "vxlan", "ipip", "cross-subnet"}

// Set implements pflag.Value.
func (f fabricMode) Set(mode string) error {
	pools, known := fabricModes[mode]
	if !known && mode != "off" && mode != "pools" {
		return errors.New("it is one of " + strings.Join(fabricNames, ", "))
	}
	f.of.Fabric, f.of.Pools = mode != "off", nil
	if known {
		for i, all := range []string{"0.0.0.0/0", "::/0"} {
			pools[i].Name, pools[i].CIDR = "--fabric", netip.MustParsePrefix(all)
			f.of.Pools = append(f.of.Pools, &pools[i])
		}
	}
	return nil
}

// String implements pflag.Value.
func (f fabricMode) String() string {
	switch {
	case f.of == nil || !f.of.Fabric:
		return "off"
	case len(f.of.Pools) == 0:
		return "pools"
	}
	for name, pools := range fabricModes {
		if pools[0].VXLAN == f.of.Pools[0].VXLAN && pools[0].IPIP == f.of.Pools[0].IPIP {
			return name
		}
	}
	return ""
}

// Type implements pflag.Value.
func (fabricMode) Type() string { return "mode" }

// fabricNeeds is what the mode needs of the kernel; nil: there is no pod network between nodes.
func fabricNeeds(c *compile.Config, encrypt bool) *preflight.Fabric {
	if !c.Fabric {
		return nil
	}
	f := &preflight.Fabric{VXLAN: len(c.Pools) == 0} // IPPools are likely to say so
	ipip := false
	for _, p := range c.Pools {
		f.VXLAN, ipip = f.VXLAN || p.VXLAN != model.Never, ipip || p.IPIP != model.Never
	}
	if f.VXLAN {
		f.Requirements = append(f.Requirements, fabric.VXLAN)
	}
	if ipip {
		f.Requirements = append(f.Requirements, fabric.IPIP)
	}
	if encrypt {
		f.Requirements = append(f.Requirements, fabric.WireGuard)
	}
	return f
}

// openFabric has the agent carry out the ways to pods of other nodes, encrypted if there is a
// private key.
func openFabric(ctx context.Context, c *agent.Config, private [32]byte, log *slog.Logger) (release func(), err error) {
	d, err := fabric.Open(driver.Options{Log: log})
	if err != nil {
		return nil, err
	}
	release = func() { _ = d.Close() }
	if err := d.Probe(ctx); err != nil {
		release()
		return nil, fmt.Errorf("--fabric: %w", err)
	}
	if private != [32]byte{} {
		if err = fabric.WireGuard.Met(ctx); err == nil {
			err = d.Encrypt(private)
		}
		if err != nil {
			release()
			return nil, fmt.Errorf("--encrypt: %w", err)
		}
	}
	if c.Underlay, err = link.WatchUnderlay(ctx, log); err != nil {
		release()
		return nil, err
	}
	paths, err := pathmtu.Open()
	if err != nil {
		release()
		return nil, err
	}
	c.Paths, c.Heard, release = paths, heard.Open(c.Node, log), func() { paths.Close(); _ = d.Close() }
	c.Fabric = d
	return release, nil
}

// purgeFabric removes the tunnels and routes that an agent has left.
func purgeFabric(ctx context.Context) error {
	d, err := fabric.Open(driver.Options{})
	if err != nil {
		return err
	}
	return errors.Join(d.Purge(ctx), d.Close())
}
