package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// lenient has arguments passed over that are not about addresses, whoever calls: those that name
// the pod.
func lenient(args string) string {
	if args == "" {
		return ""
	}
	return "IgnoreUnknown=true;" + args
}

// assign gives a container addresses, one of each of the ranges of the configuration, from the
// store on disk that the reference plugin host-local has. If it fails, none is given.
func assign(stdin []byte, args, container, ifname string) (addrs []netip.Addr, err error) {
	conf, _, err := allocator.LoadIPAMConfig(stdin, lenient(args))
	if err != nil {
		return nil, err
	}
	store, err := disk.New(conf.Name, conf.DataDir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, store.ReleaseByID(container, ifname))
		}
		err = errors.Join(err, store.Close())
	}()
	wanted := conf.IPArgs
	for i := range conf.Ranges {
		set := &conf.Ranges[i]
		var asked net.IP
		for j, ip := range wanted {
			if set.Contains(ip) {
				asked, wanted = ip, append(wanted[:j:j], wanted[j+1:]...)
				break
			}
		}
		got, err := allocator.NewIPAllocator(set, store, i).Get(container, ifname, asked)
		if err != nil {
			return nil, fmt.Errorf("assign an address of %s: %w", set, err)
		}
		a, _ := netip.AddrFromSlice(got.Address.IP)
		addrs = append(addrs, a.Unmap())
	}
	if len(wanted) > 0 {
		return nil, fmt.Errorf("assign %v: no range of the configuration has it", wanted)
	}
	return addrs, nil
}

// release takes a container's addresses back. What it does not have is released already.
func release(stdin []byte, args, container, ifname string) (err error) {
	conf, _, err := allocator.LoadIPAMConfig(stdin, lenient(args))
	if err != nil {
		return err
	}
	store, err := disk.New(conf.Name, conf.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	for i := range conf.Ranges {
		if err := allocator.NewIPAllocator(&conf.Ranges[i], store, i).Release(container, ifname); err != nil {
			return fmt.Errorf("release the addresses of %s: %w", container, err)
		}
	}
	return nil
}
