package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/addresses/announce"
	address "sluice.dev/sluice/internal/addresses/compile"
	"sluice.dev/sluice/internal/addresses/heartbeat"
	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kube"
	"sluice.dev/sluice/internal/store"
)

// addressPlane is what carries out addresses of Services.
type addressPlane struct {
	responder *announce.Responder
	nodes     *heartbeat.Heartbeat
	statuses  *kube.Addresses // nil: there is no API to write to
	events    *kube.Recorder  // nil: nobody is told who announces what
	announced map[netip.Addr]*address.Announcement
}

var _ agent.Addresses = (*addressPlane)(nil)

// openAddresses opens what the agent of a node announces addresses with, and writes them into the
// statuses of Services if there is an API. events may be nil.
func openAddresses(ctx context.Context, node string, o *runOptions, events *kube.Recorder, objects *store.Store, contests *contest.Board, log *slog.Logger) (*addressPlane, error) {
	segments, err := link.WatchSegments(ctx, log)
	if err != nil {
		return nil, err
	}
	p := &addressPlane{nodes: heartbeat.New(node, log), events: events, announced: map[netip.Addr]*address.Announcement{}}
	p.responder, err = announce.Open(segments, log)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EAFNOSUPPORT) {
		err = fmt.Errorf("%w: to answer for addresses the agent needs the capability CAP_NET_RAW, and may not be kept from sockets of the family AF_PACKET", err)
	}
	if err != nil {
		return nil, fmt.Errorf("--service-addresses: %w", err)
	}
	if o.kubeFlags.named() {
		p.statuses = kube.NewAddresses(o.kubeFlags.api(false), node, log)
		p.statuses.Contests, p.statuses.IsNode = contests, func(name string) bool { return objects.Node(name) != nil }
	}
	return p, nil
}

// Follow implements agent.Addresses.
func (p *addressPlane) Follow(d address.Delta) {
	if d.Peers != nil {
		p.nodes.SetPeers(d.Peers)
	}
	for a, is := range d.Announced {
		if is == nil {
			p.responder.Stop(a)
			delete(p.announced, a)
			continue
		}
		if was := p.announced[a]; was == nil || !was.Alike(is) {
			p.responder.Answer(a, is.Interfaces)
		}
		p.announced[a] = is
	}
	if p.events != nil && len(d.Announced) > 0 {
		services := map[netip.Addr][]model.Name{}
		for a, is := range p.announced {
			services[a] = is.Services
		}
		p.events.Announce(services)
	}
	if p.statuses == nil {
		return
	}
	for service, want := range d.Wanted {
		if want == nil {
			p.statuses.Settled(service)
		} else {
			p.statuses.Want(want.Of, want.IPs)
		}
	}
}

// Silent implements agent.Addresses.
func (p *addressPlane) Silent() <-chan map[string]bool { return p.nodes.Silent() }

// Answered implements agent.Addresses.
func (p *addressPlane) Answered() map[netip.Addr][]string { return p.responder.Answered() }

// Run implements agent.Addresses.
func (p *addressPlane) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { p.responder.Run(ctx) })
	running.Go(func() { p.nodes.Run(ctx) })
	if p.statuses != nil {
		running.Go(func() { p.statuses.Run(ctx) })
	}
	running.Wait()
}

// Counts implements agent.Addresses.
func (p *addressPlane) Counts() (n agent.AddressCounts) {
	c := p.responder.Counts()
	n.Announced, n.Answers, n.Unasked = c.Addresses, c.Answers, c.Unasked
	n.Nodes, n.Silent = p.nodes.Counts()
	if p.statuses != nil {
		n.Unwritten = p.statuses.Unwritten()
	}
	return n
}

const addressesHelp = `List the addresses that Services have from IPAddressPools, and external IPs that lie in one.

NODE is the node that announces the address, as this agent finds it from the objects and from which
nodes are alive; "-": nobody. HOW is ARP or NDP: the node answers whoever asks for the address.
SINCE is how long ago this agent found that. INTERFACES are those on which this node answers, if it
is the one: "all" are those with a subnet of the address's family, "none": it has none that it may
answer on. BGP is the route by which this node announces the address to BGP peers; 'sluice bgp
--routes' says to which. An address whose POOL is "-" is in none any more, and its Service keeps it.`

func newAddressesCommand() *cobra.Command {
	return newListCommand("addresses", "List the addresses of Services, and which node announces each", addressesHelp,
		func(cmd *cobra.Command, client *agent.Client) ([]address.Address, error) {
			return client.Addresses(cmd.Context())
		}, addressesTable)
}

func addressesTable(w io.Writer, list []address.Address) {
	if len(list) == 0 {
		_, _ = fmt.Fprintln(w, "no Service has an address of a pool")
		return
	}
	_, _ = fmt.Fprintln(w, "ADDRESS\tPOOL\tSERVICES\tNODE\tHOW\tSINCE\tINTERFACES\tBGP")
	for _, a := range list {
		pool, node, how, since, interfaces, route := "-", "-", "-", "-", "-", "-"
		if a.Pool != (model.Name{}) {
			pool = a.Pool.String()
		}
		if a.Node != "" {
			node, how, since = a.Node, a.How, span(time.Since(a.Since))
		}
		switch {
		case !a.Here:
		case a.Unanswered:
			interfaces = "none"
		case len(a.Interfaces) > 0:
			interfaces = strings.Join(a.Interfaces, ",")
		default:
			interfaces = "all"
		}
		if a.BGP.IsValid() {
			route = a.BGP.String()
		}
		_ = printf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", a.Address, pool, model.Join(a.Services, ","), node, how, since, interfaces, route)
	}
}
