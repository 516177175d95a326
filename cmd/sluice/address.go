package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	rtnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/wake"
)

// addressPause is how long the host's addresses may change before they are
// listed: they mostly come several at a time.
const addressPause = 50 * time.Millisecond

// noticePause is how long a socket rests that cannot be read.
const noticePause = time.Second

// followAddresses tells the addresses of the calling thread's network
// namespace each time that they have changed, until ctx ends.
func followAddresses(ctx context.Context, log *slog.Logger) (<-chan []netip.Prefix, error) {
	// Both sockets are opened in the calling thread, and stay in its namespace wherever they are used.
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("list host addresses: %w", err)
	}
	notices, err := rtnetlink.Dial(unix.NETLINK_ROUTE, &rtnetlink.Config{Groups: unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR})
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("follow host addresses: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = notices.Close() }) // ends Receive, too
	changed := wake.New()
	changed <- struct{}{} // what changed before the socket was open
	go noticeChanges(ctx, log, func() error { _, err := notices.Receive(); return err }, changed)
	told := make(chan []netip.Prefix)
	go func() {
		defer close(told)
		defer h.Close()
		tellAddresses(ctx, log, h, changed, told)
	}()
	return told, nil
}

// noticeChanges fills changed, which has room for one, each time that notices came or may
// have been lost, until ctx ends. The kernel drops notices that don't fit and says so (ENOBUFS); the
// socket goes on then, and as all addresses are listed after it, nothing is missed.
func noticeChanges(ctx context.Context, log *slog.Logger, receive func() error, changed wake.Signal) {
	for failing := false; ; {
		err := receive()
		lost := err != nil && !errors.Is(err, unix.ENOBUFS)
		if lost {
			if !failing && ctx.Err() == nil {
				log.Warn("changes of host addresses can't be read; listing them every second meanwhile", "error", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(noticePause):
			}
		}
		failing = lost
		if ctx.Err() != nil {
			return
		}
		changed.Set()
	}
}

// tellAddresses lists the addresses after each burst of changes.
func tellAddresses(ctx context.Context, log *slog.Logger, h *netlink.Handle, changed <-chan struct{}, told chan<- []netip.Prefix) {
	var last []netip.Prefix
	pause := time.NewTimer(addressPause)
	pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
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

// listAddresses lists the addresses of a namespace with the lengths of their subnets, sorted, without link-local ones.
func listAddresses(h *netlink.Handle) ([]netip.Prefix, error) {
	found, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list host addresses: %w", err)
	}
	var addrs []netip.Prefix
	for _, a := range found {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && !addr.IsLinkLocalUnicast() {
			ones, _ := a.Mask.Size()
			addrs = append(addrs, netip.PrefixFrom(addr.Unmap(), ones))
		}
	}
	slices.SortFunc(addrs, netip.Prefix.Compare)
	return slices.Compact(addrs), nil
}

// hostAddresses lists the addresses of the calling thread's network namespace, as listAddresses does.
func hostAddresses() ([]netip.Prefix, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("list host addresses: %w", err)
	}
	defer h.Close()
	return listAddresses(h)
}
