package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addressPause is how long the host's addresses may change before they are
// listed: they mostly come several at a time.
const addressPause = 50 * time.Millisecond

// followAddresses tells the addresses of the calling thread's network
// namespace each time that they have changed, until ctx ends.
func followAddresses(ctx context.Context, log *slog.Logger) (<-chan []netip.Addr, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("list host addresses: %w", err)
	}
	updates := make(chan netlink.AddrUpdate, 64)
	// A burst that doesn't fit makes no difference, as all addresses are listed after it.
	options := netlink.AddrSubscribeOptions{
		ReceiveBufferSize: 1 << 20,
		ErrorCallback: func(err error) {
			log.Warn("host addresses are no longer followed; node ports stay on those of now", "error", err)
		},
	}
	if err := netlink.AddrSubscribeWithOptions(updates, ctx.Done(), options); err != nil {
		h.Close()
		return nil, fmt.Errorf("follow host addresses: %w", err)
	}
	told := make(chan []netip.Addr)
	go func() {
		defer close(told)
		defer h.Close()
		tellAddresses(ctx, log, h, updates, told)
	}()
	return told, nil
}

// tellAddresses lists the addresses after each burst of updates.
func tellAddresses(ctx context.Context, log *slog.Logger, h *netlink.Handle, updates <-chan netlink.AddrUpdate, told chan<- []netip.Addr) {
	var last []netip.Addr
	pause := time.NewTimer(0) // what changed between the start and the subscription
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-updates:
			if !ok {
				return
			}
			pause.Reset(addressPause)
			continue
		case <-pause.C:
		}
		now, err := listAddresses(h)
		if err != nil {
			log.Warn("host addresses can't be listed; trying again with the next change", "error", err)
			continue
		}
		if slices.Equal(now, last) {
			continue
		}
		last = now
		select {
		case told <- now:
		case <-ctx.Done():
			return
		}
	}
}

// listAddresses lists the addresses of a namespace, sorted, without link-local ones.
func listAddresses(h *netlink.Handle) ([]netip.Addr, error) {
	found, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list host addresses: %w", err)
	}
	var addrs []netip.Addr
	for _, a := range found {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && !addr.IsLinkLocalUnicast() {
			addrs = append(addrs, addr.Unmap())
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil
}

// hostAddresses lists the addresses of the calling thread's network namespace.
func hostAddresses() ([]netip.Addr, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("list host addresses: %w", err)
	}
	defer h.Close()
	return listAddresses(h)
}
