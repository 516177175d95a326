package preflight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/foreign"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/peer"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/kernel/sysctl"
)

// Options say how the agent would be started.
type Options struct {
	Socket string // where the agent is reached
	// ServiceCIDRs tell which families are in use. Without them, those of which the
	// node has global addresses.
	ServiceCIDRs []netip.Prefix
	// Mode carries out services; ModeReason says why the node chose it, if that was left to it.
	Mode, ModeReason string
	// Policy: the agent is to carry out network policy, too.
	Policy bool
	// Requirements on the kernel: of services, of policy, and optional ones.
	Requirements, PolicyRequirements, Optional []*probe.Requirement
	// Fabric: the agent is to connect nodes, too; nil: it is not.
	Fabric *Fabric
	Nodes  int // that are known, this one too; 0: nobody has said
	// Driver asks the driver whether this kernel takes its ruleset, and what it cannot do of all
	// that services and policies may ask for; nil: do not ask.
	Driver func(context.Context) (name, lacks string, err error)
	// Refused names the addresses and ports of services that the agent does not serve; nil: do not
	// ask.
	Refused func(context.Context) ([]string, error)
}

// Gather reads the facts of the calling thread's network namespace. What cannot
// be read is noted in the facts. It changes nothing, but listens for a moment
// on the addresses that the agent would serve on.
func Gather(ctx context.Context, o Options) *Facts {
	f := &Facts{Mode: o.Mode, ModeReason: o.ModeReason, Socket: o.Socket}
	_, err := peer.At(o.Socket)
	f.Alive = err == nil
	f.Kernel, f.KernelErr = release()
	f.NetAdmin, f.NetAdminErr = HasNetAdmin()
	f.Features, f.FeaturesErr = f.ask(ctx, o.Requirements)
	f.Optional, _ = f.ask(ctx, o.Optional) // an error would be that of the needed ones
	if f.PolicyAsked = o.Policy; o.Policy {
		f.PolicyFeatures, f.PolicyErr = f.ask(ctx, o.PolicyRequirements)
		f.Bridges, f.BridgeCalls, err = bridges()
		f.PolicyErr = errors.Join(f.PolicyErr, err)
	}
	if f.FabricAsked = o.Fabric != nil; f.FabricAsked {
		f.FabricVXLAN = o.Fabric.VXLAN
		f.FabricFeatures, f.FabricErr = f.ask(ctx, o.Fabric.Requirements)
		f.NICs, f.NICErr = nics(underlay)
	}
	f.Uplinks, f.UplinkErr = nics(link.Here.Uplinks)
	if o.Driver != nil {
		f.DriverAsked = true
		f.Driver, f.DriverLacks, f.DriverErr = o.Driver(ctx)
	}
	f.Families = families(o.ServiceCIDRs)
	f.Forwarding, f.StrictPath, f.SysctlErr = interfaces()
	f.Conntrack = connections()
	f.Neighbours, f.Nodes = ReadNeighbours(), o.Nodes
	f.Chains, f.OwnTable, f.ChainsErr = foreign.Tables()
	f.Legacy = foreign.ReadLegacy(ctx)
	f.IPVS = virtualServices()
	f.Processes, f.Devices = running(watched), devices()
	if !f.Alive {
		f.Taken = taken(ctx, addresses)
		f.NoLivez = slices.Contains(f.Taken, health) && lacksLivez(ctx, health)
	}
	if o.Refused != nil {
		f.Refused, f.RefuseErr = o.Refused(ctx)
	}
	f.Memory = ownMemory()
	f.Changed, f.RecordErr = sysctl.List(sysctl.RecordPath(o.Socket))
	f.Changed = slices.DeleteFunc(f.Changed, func(c sysctl.Override) bool {
		now, err := sysctl.Read(c.Key)
		undone := err == nil && now != c.Now
		if undone {
			f.Undone = append(f.Undone, sysctl.Override{Key: c.Key, Was: c.Now, Now: now})
		}
		return undone
	})
	return f
}

func release() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", fmt.Errorf("read kernel version: %w", err)
	}
	return unix.ByteSliceToString(u.Release[:]), nil
}

// ask checks requirements on the kernel.
func (f *Facts) ask(ctx context.Context, requirements []*probe.Requirement) (features []Feature, err error) {
	denied := f.NetAdminErr == nil && !f.NetAdmin
	for _, r := range requirements {
		if !denied {
			err = r.Met(ctx)
			denied = errors.Is(err, os.ErrPermission)
		}
		if denied {
			return nil, errors.New("it needs CAP_NET_ADMIN")
		}
		features = append(features, Feature{r, err})
	}
	return features, nil
}

// HasNetAdmin reports whether CAP_NET_ADMIN is effective in the process's own user namespace.
func HasNetAdmin() (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // a set of capabilities is two words; this one is in the first
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false, fmt.Errorf("read capabilities: %w", err)
	}
	return data[0].Effective&(1<<unix.CAP_NET_ADMIN) != 0, nil
}

// families reads what concerns each address family in use.
func families(services []netip.Prefix) []Family {
	// Without a service CIDR any address outside will do: these are reserved for
	// documentation, so that no node has a route of its own for them.
	target := map[bool]netip.Addr{true: netip.MustParseAddr("192.0.2.1"), false: netip.MustParseAddr("2001:db8::1")}
	used := map[bool]bool{}
	for _, p := range services {
		if is4 := p.Addr().Is4(); !used[is4] {
			used[is4] = true
			target[is4] = p.Masked().Addr().Next()
		}
	}
	assumed := len(used) == 0
	if assumed {
		addrs, _ := link.Here.Addresses() // none can be read without netlink, which other checks tell of
		for _, a := range addrs {
			used[a.Prefix.Addr().Is4()] = used[a.Prefix.Addr().Is4()] || a.Global
		}
	}
	var found []Family
	if used[true] || !used[false] {
		found = append(found, family("IPv4", target[true], sysctl.Forward4))
	}
	if used[false] {
		f := family("IPv6", target[false], sysctl.Forward6)
		_, f.AdviceErr = sysctl.Needed(false, true)
		found = append(found, f)
	}
	for i := range found {
		found[i].Assumed = assumed
	}
	return found
}

func family(name string, target netip.Addr, forward string) Family {
	f := Family{Name: name, Target: target.String(), Forward: forward}
	f.Route, f.RouteErr = route(target)
	value, err := sysctl.Read(forward)
	f.Forwards = err == nil && value != "0"
	return f
}

// route says where the kernel would send a packet of its own.
func route(target netip.Addr) (string, error) {
	r, err := link.Here.Route(target)
	if err != nil {
		return "", err
	}
	where := "on interface " + strconv.Itoa(r.Link)
	if name, err := link.Here.Name(r.Link); err == nil {
		where = "dev " + name
	}
	if r.Gateway.IsValid() {
		where = "via " + r.Gateway.String() + " " + where
	}
	return where, nil
}

// interfaces returns those that do not forward IPv4 although the node does, and
// those whose reverse path filter is strict.
func interfaces() (off, strict []string, err error) {
	const conf = "/proc/sys/net/ipv4/conf"
	entries, err := os.ReadDir(conf)
	if err != nil {
		return nil, nil, fmt.Errorf("list interfaces: %w", err)
	}
	value := func(name, key string) string {
		v, readErr := sysctl.Read("net.ipv4.conf." + sysctl.Interface(name) + "." + key)
		if readErr != nil && !errors.Is(readErr, os.ErrNotExist) { // an interface may go meanwhile
			err = errors.Join(err, readErr)
		}
		return v
	}
	forwards := value("all", "forwarding") == "1"
	// The kernel takes the larger of an interface's value and that of "all".
	all := value("all", "rp_filter")
	for _, e := range entries {
		name := e.Name()
		if name == "all" || name == "default" || name == "lo" {
			continue
		}
		if forwards && value(name, "forwarding") == "0" {
			off = append(off, name)
		}
		if max(all, value(name, "rp_filter")) == "1" {
			strict = append(strict, name)
		}
	}
	return off, strict, err
}

func connections() Conntrack {
	count, err := sysctl.Number("net.netfilter.nf_conntrack_count")
	if errors.Is(err, os.ErrNotExist) {
		return Conntrack{}
	}
	limit, limitErr := sysctl.Number("net.netfilter.nf_conntrack_max")
	c := Conntrack{Loaded: true, Count: count, Max: limit, CountErr: errors.Join(err, limitErr)}
	lib, err := sysctl.Number("net.netfilter.nf_conntrack_tcp_be_liberal")
	c.Liberal, c.ParamErr = lib != 0, err
	return c
}

// virtualServices counts the services of IPVS; without IPVS there are none.
func virtualServices() int {
	b, err := os.ReadFile("/proc/thread-self/net/ip_vs")
	if err != nil {
		return 0
	}
	n := 0
	for line := range bytes.Lines(b) {
		for _, kind := range []string{"TCP ", "UDP ", "SCTP ", "FWM "} {
			if bytes.HasPrefix(line, []byte(kind)) {
				n++
			}
		}
	}
	return n
}
