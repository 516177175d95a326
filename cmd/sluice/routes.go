package main

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/kernel/sysctl"
)

// routes says what becomes of packets by the node's rules, routes and interfaces.
type routes struct {
	links *link.Reader
	here  *netns.NS // what links reads
}

// lost is agent.Config's.
func (r *routes) lost(p agent.Passing) (why, shown string) {
	shown = fmt.Sprintf("ip route get %v", p.To)
	in, out := r.device(p.In), r.device(p.Out)
	if p.From.IsValid() {
		shown += fmt.Sprintf(" from %v", p.From)
	}
	if p.In != (agent.Hop{}) {
		if in.Index == 0 {
			return fmt.Sprintf("there is no interface %s, by which %v comes in", in.Device, p.From), "ip link show"
		}
		shown += " iif " + in.Device
	}
	way, err := r.links.RouteFrom(p.From, p.To, in.Index)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EXDEV):
		if why = r.filtered(p.From, in); why == "" {
			why = "a blackhole route or rule drops what goes there"
		}
		return why, shown
	case errors.Is(err, unix.EACCES):
		return "a prohibit route or rule rejects what goes there", shown
	case errors.Is(err, unix.EHOSTUNREACH):
		if why = r.stopped(p.To, in); why == "" {
			why = "an unreachable route rejects what goes there"
		}
		return why, shown
	case errors.Is(err, unix.ENETUNREACH):
		return "there is no route", shown
	case err != nil:
		return "", ""
	case p.Out != (agent.Hop{}):
		leads := r.device(agent.Hop{Index: way.Link, Via: way.Gateway})
		switch {
		case leads.Device != out.Device:
			return fmt.Sprintf("the route leads to %s, not to %s", hopText(leads), out.Device), shown
		case out.Via.IsValid() && leads.Via != out.Via:
			return fmt.Sprintf("the route leads to %s, not via %v", hopText(leads), out.Via), shown
		}
	}
	if state := r.links.Down(way.Link); state != "" && !way.Local {
		return fmt.Sprintf("the route leads to interface %s, which is %s", r.device(agent.Hop{Index: way.Link}).Device, state), shown
	}
	if p.To.Is6() && !way.Local { // whose routes do not tell
		if why = r.stopped(p.To, in); why != "" {
			return why, shown
		}
	}
	return "", ""
}

// device completes a hop; its index is 0 where there is no such interface.
func (r *routes) device(h agent.Hop) agent.Hop {
	if h.Device == "" {
		h.Device, _ = r.links.Name(h.Index)
	} else {
		h.Index, _ = r.links.Index(h.Device)
	}
	return h
}

func hopText(h agent.Hop) string {
	if !h.Via.IsValid() {
		return h.Device
	}
	return fmt.Sprintf("%s via %v", h.Device, h.Via)
}

// filtered says that the reverse path filter drops what comes in from an address, if it does.
func (r *routes) filtered(from netip.Addr, in agent.Hop) string {
	if in.Index == 0 || !from.Is4() {
		return ""
	}
	back, err := r.links.Route(from)
	leads := r.device(agent.Hop{Index: back.Link, Via: back.Gateway})
	// The kernel takes the larger of an interface's value and that of "all".
	switch filter := max(r.parameter("net.ipv4.conf.all.rp_filter"), r.parameter("net.ipv4.conf."+sysctl.Interface(in.Device)+".rp_filter")); {
	case filter == "1" && err == nil && back.Link != in.Index:
		return fmt.Sprintf("rp_filter is strict at %s, and drops what comes from %v: the route back leads to %s", in.Device, from, hopText(leads))
	case filter > "0" && err != nil:
		return fmt.Sprintf("rp_filter at %s drops what comes from %v: there is no route back", in.Device, from)
	}
	return ""
}

// stopped says that nothing is passed on that comes in by an interface, if so.
func (r *routes) stopped(to netip.Addr, in agent.Hop) string {
	if in.Index == 0 {
		return ""
	}
	all, one := sysctl.Forward4, "net.ipv4.conf."+sysctl.Interface(in.Device)+".forwarding"
	if to.Is6() {
		all, one = sysctl.Forward6, sysctl.Forward6 // which holds for all interfaces
	}
	switch {
	case r.parameter(all) == "0":
		return fmt.Sprintf("forwarding is off: %s is 0", all)
	case r.parameter(one) == "0":
		return fmt.Sprintf("forwarding is off for what comes in by %s: %s is 0", in.Device, one)
	}
	return ""
}

func (r *routes) parameter(key string) (value string) {
	_ = r.here.Do(func() (err error) { value, err = sysctl.Read(key); return err }) // a device may be gone meanwhile
	return value
}
