package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"

	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/pods/attach"
)

// hostLocal is the reference plugin of that name in process: its allocator and its store.
type hostLocal struct {
	network string
	stdin   []byte
	node    *netns.NS
}

// config reads the ranges, and which addresses are asked for.
func (h *hostLocal) config(args string) (*allocator.IPAMConfig, error) {
	stdin, err := withPodCIDRs(h.stdin)
	if err != nil {
		return nil, err
	}
	if args != "" {
		args = "IgnoreUnknown=true;" + args // most are about the pod
	}
	conf, _, err := allocator.LoadIPAMConfig(stdin, args)
	if err != nil {
		return nil, fault(types.ErrInvalidNetworkConfig, "read ipam, and the addresses that are asked for: the node's pod CIDRs are ipam.podCIDRs, or ipam.ranges as host-local has them", err)
	}
	for _, set := range conf.Ranges {
		for _, r := range set {
			subnet, _ := netip.ParsePrefix((*net.IPNet)(&r.Subnet).String())
			if err := model.CheckPodCIDR(subnet); err != nil {
				return nil, fault(types.ErrInvalidNetworkConfig, "ipam: choose other ranges", err)
			}
		}
	}
	return conf, nil
}

// withPodCIDRs writes ipam.podCIDRs as ranges: one address of each family.
func withPodCIDRs(stdin []byte) ([]byte, error) {
	var all, ipam map[string]any
	var conf struct {
		IPAM struct {
			PodCIDRs []netip.Prefix `json:"podCIDRs"`
		} `json:"ipam"`
	}
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return nil, fault(types.ErrInvalidNetworkConfig, "read ipam.podCIDRs", err)
	}
	if len(conf.IPAM.PodCIDRs) == 0 {
		return stdin, nil
	}
	if err := json.Unmarshal(stdin, &all); err != nil {
		return nil, fault(types.ErrDecodingFailure, "read the network configuration", err)
	}
	ipam, _ = all["ipam"].(map[string]any)
	if ipam["ranges"] != nil || ipam["subnet"] != nil {
		return nil, fault(types.ErrInvalidNetworkConfig, "ipam has podCIDRs and ranges: leave out one of them", nil)
	}
	var sets []any
	for _, is4 := range []bool{true, false} {
		var set []any
		for _, p := range conf.IPAM.PodCIDRs {
			if p.Addr().Is4() == is4 {
				set = append(set, map[string]any{"subnet": p.String()})
			}
		}
		if len(set) > 0 {
			sets = append(sets, set)
		}
	}
	ipam["ranges"] = sets
	return json.Marshal(all)
}

// open opens the store, whatever else the configuration says.
func (h *hostLocal) open() (*ledger, error) {
	var conf struct {
		IPAM struct {
			DataDir string `json:"dataDir"`
		} `json:"ipam"`
	}
	if err := json.Unmarshal(h.stdin, &conf); err != nil {
		return nil, fault(types.ErrDecodingFailure, "read ipam.dataDir", err)
	}
	return openLedger(h.network, conf.IPAM.DataDir, func(a netip.Addr) string { return attach.Taken(h.node, a) })
}

// do opens the store for what f does.
func (h *hostLocal) do(f func(*ledger) error) error {
	l, err := h.open()
	if err != nil {
		return err
	}
	return errors.Join(f(l), l.Close())
}

func (h *hostLocal) add(args *skel.CmdArgs) (given lease, err error) {
	conf, err := h.config(args.Args)
	if err != nil {
		return lease{}, err
	}
	err = h.do(func(l *ledger) (err error) { given, err = l.lease(args, conf); return err })
	return given, err
}

// lease gives a container an address of each set of ranges. If it fails, none is given.
func (l *ledger) lease(args *skel.CmdArgs, conf *allocator.IPAMConfig) (given lease, err error) {
	if has := l.of(args.ContainerID, args.IfName); len(has) > 0 {
		return lease{}, fault(types.ErrInvalidEnvironmentVariables,
			fmt.Sprintf("CNI_CONTAINERID=%s with CNI_IFNAME=%s has %v already: call DEL before ADD", args.ContainerID, args.IfName, has), nil)
	}
	given.routes = conf.Routes
	wanted := conf.IPArgs
	for i := range conf.Ranges {
		var a netip.Addr
		if a, wanted, err = l.give(args, i, &conf.Ranges[i], wanted); err != nil {
			break
		}
		given.ips = append(given.ips, &current.IPConfig{Address: *prefix(a, a.BitLen())})
	}
	if err == nil && len(wanted) > 0 {
		err = fault(types.ErrInvalidNetworkConfig, fmt.Sprintf("give %v: no range has it: ask for addresses of %s", wanted, rangesText(conf.Ranges)), nil)
	}
	if err != nil { // what was written is read again, as the allocator does not say it
		return lease{}, errors.Join(err, l.read(), l.take(args))
	}
	return given, nil
}

// rangesText is "10.0.0.1-10.0.0.254 and fd00::1-fd00::ff".
func rangesText(sets []allocator.RangeSet) string {
	var all []string
	for i := range sets {
		all = append(all, sets[i].String())
	}
	return strings.Join(all, " and ")
}

// give gives a container an address of a set of ranges: one of those that are wanted, of which it
// returns the rest.
func (l *ledger) give(args *skel.CmdArgs, id int, set *allocator.RangeSet, wanted []net.IP) (netip.Addr, []net.IP, error) {
	var asked net.IP
	if i := slices.IndexFunc(wanted, set.Contains); i >= 0 {
		asked, wanted = wanted[i], slices.Delete(slices.Clone(wanted), i, i+1)
		if by, given := l.given[addrOf(asked)]; given {
			return netip.Addr{}, wanted, taken(addrOf(asked), "container "+by.ContainerID)
		}
		if by := l.taken(addrOf(asked)); by != "" {
			return netip.Addr{}, wanted, taken(addrOf(asked), by)
		}
	} else if free, elsewhere := l.free(*set); !free {
		return netip.Addr{}, wanted, l.full(*set, elsewhere)
	}
	got, err := allocator.NewIPAllocator(set, l, id).Get(args.ContainerID, args.IfName, asked)
	if _, disk := errors.AsType[*fs.PathError](err); disk {
		return netip.Addr{}, wanted, l.fault(fmt.Sprintf("give an address of %s from", set), err)
	} else if err != nil {
		return netip.Addr{}, wanted, fault(types.ErrInvalidNetworkConfig, fmt.Sprintf("give an address of %s: ask for another, or for none", set), err)
	}
	return addrOf(got.Address.IP), wanted, nil
}

// full says that no address is left. Some that are not given have others on the node.
func (l *ledger) full(set allocator.RangeSet, elsewhere int) error {
	n := 0
	for a := range l.given {
		if set.Contains(a.AsSlice()) {
			n++
		}
	}
	others := ""
	if elsewhere > 0 {
		others = fmt.Sprintf(", and %d more are the node's own, routed elsewhere on it, or no files of the store", elsewhere)
	}
	return fault(types.ErrTryAgainLater, fmt.Sprintf("no address is free in %s: %d are given, as files in %s%s: delete pods, give the node a larger range, or have the runtime call GC if containers are gone",
		&set, n, l.dir, others), nil)
}

// take takes a container's addresses back.
func (l *ledger) take(args *skel.CmdArgs) error {
	var errs []error
	for _, a := range l.of(args.ContainerID, args.IfName) {
		errs = append(errs, l.remove(a))
	}
	if err := errors.Join(errs...); err != nil {
		return l.fault("take addresses back to", err)
	}
	return nil
}

func (h *hostLocal) del(args *skel.CmdArgs) error {
	return h.do(func(l *ledger) error { return l.take(args) })
}

func (h *hostLocal) check(args *skel.CmdArgs, addrs []netip.Addr) error {
	return h.do(func(l *ledger) error {
		has := l.of(args.ContainerID, args.IfName)
		if len(has) == 0 {
			return fault(types.ErrUnknownContainer, fmt.Sprintf("container %s has no address in %s: make it anew", args.ContainerID, l.dir), nil)
		}
		for _, a := range addrs {
			if !slices.Contains(has, a) {
				return fault(types.ErrInternal, fmt.Sprintf("%s is not given to container %s, which has %v in %s: make the container anew", a, args.ContainerID, has, l.dir), nil)
			}
		}
		return nil
	})
}

func (h *hostLocal) gc(valid []types.GCAttachment, lost func(types.GCAttachment) error) error {
	return h.do(func(l *ledger) error {
		var errs []error
		for a, by := range l.given {
			if slices.Contains(valid, by) || by.IfName == "" && slices.ContainsFunc(valid, func(v types.GCAttachment) bool { return v.ContainerID == by.ContainerID }) {
				continue
			}
			if err := lost(by); err != nil { // who still has an interface keeps its address
				errs = append(errs, err)
			} else if err := l.remove(a); err != nil {
				errs = append(errs, l.fault("take an address back to", err))
			}
		}
		return errors.Join(errs...)
	})
}

func (h *hostLocal) status() (is4, is6 bool, err error) {
	conf, err := h.config("")
	if err != nil {
		return false, false, err
	}
	err = h.do(func(l *ledger) error {
		for _, set := range conf.Ranges {
			if free, elsewhere := l.free(set); !free {
				return l.full(set, elsewhere)
			}
			v4 := addrOf(set[0].RangeStart).Is4()
			is4, is6 = is4 || v4, is6 || !v4
		}
		trial := filepath.Join(l.dir, "trial")
		if err := errors.Join(os.WriteFile(trial, []byte("room"), 0o600), os.Remove(trial)); err != nil {
			return l.fault("write to", err)
		}
		return nil
	})
	return is4, is6, err
}
