package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/list"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/netns"
)

// listName is the name of the address list of DenyList and HostPolicy.
const listName = "bench"

// DenyList is Sluice's list of addresses that are dropped where they arrive.
type DenyList struct{ Mode Mode }

// Name implements Blocker.
func (d DenyList) Name() string { return d.Mode.Name() }

// Limit implements Blocker.
func (DenyList) Limit() (int, string) { return 0, "" }

// Block implements Blocker.
func (d DenyList) Block(ctx context.Context, node *netns.NS, device string, entries []netip.Prefix) (*Blocked, error) {
	cfg := Config()
	cfg.Policy = true
	if len(entries) > 0 {
		cfg.DenyLists, cfg.DenyDevices = []string{listName}, []string{device}
	}
	b, err := blockBySluice(ctx, node, d.Mode, cfg, nil, entries)
	if err == nil && d.Mode != "" && len(entries) > 0 {
		b.Memory, err = ipsetsSize(node)
	}
	return b, err
}

// HostPolicy is a global policy in Sluice that denies what is forwarded from a host endpoint's
// interface, if a list has it, and allows the rest.
type HostPolicy struct{}

// Name implements Blocker.
func (HostPolicy) Name() string { return Sluice{}.Name() + ", a global policy" }

// Limit implements Blocker.
func (HostPolicy) Limit() (int, string) { return 0, "" }

// Block implements Blocker.
func (HostPolicy) Block(ctx context.Context, node *netns.NS, device string, entries []netip.Prefix) (*Blocked, error) {
	cfg := Config()
	cfg.Policy = true
	side := model.Equal("side", "outside")
	rules := []model.PolicyRule{{Name: "allow", Action: model.Allow}}
	if len(entries) > 0 {
		listed := model.PolicyRule{Name: "listed", Action: model.Deny}
		listed.Source.Peers = [][]model.Peer{{{Selector: model.Equal(list.Label, listName)}}}
		rules = append([]model.PolicyRule{listed}, rules...)
	}
	endpoint := model.Name{Name: "outside"}
	policy := model.PolicyKey{Kind: model.GlobalNetworkPolicy, Name: model.Name{Name: "block"}}
	return blockBySluice(ctx, node, "", cfg, []store.Event{
		{Kind: model.HostEndpointKind, Name: endpoint, Object: &model.HostEndpoint{
			Name: endpoint.Name, Node: cluster.Node, Interface: device, Labels: map[string]string{"side": "outside"},
		}},
		{Kind: model.GlobalNetworkPolicy, Name: policy.Name, Object: &model.Policy{
			Key: policy, Tier: model.DefaultTier.Name, Order: 1, Subject: side, Ingress: true, ApplyOnForward: true, IngressRules: rules,
		}},
	}, entries)
}

// blockBySluice programs the events, and then, timed, the list.
func blockBySluice(ctx context.Context, node *netns.NS, mode Mode, cfg compile.Config, events []store.Event, entries []netip.Prefix) (*Blocked, error) {
	events = append(events, store.Event{
		Kind: model.NodeKind, Name: model.Name{Name: cluster.Node},
		Object: &model.Node{Name: cluster.Node, IPs: []netip.Addr{cluster.NodeAddr}},
	})
	n, _, err := start(ctx, node, mode, cfg, events)
	if err != nil {
		return nil, err
	}
	blocked := &Blocked{Loaded: Loaded{Note: "nothing to load", Close: n.Close}}
	if len(entries) == 0 {
		return blocked, nil
	}
	var file bytes.Buffer
	if err := cluster.WriteEntries(&file, entries); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	runtime.GC()
	began := time.Now()
	nets, err := list.Read(&file)
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	read := time.Since(began)
	key := model.NetworkSetKey{Kind: model.AddressList, Name: model.Name{Name: listName}}
	took, err := n.Apply(ctx, []store.Event{{Kind: model.AddressList, Name: key.Name, Object: &model.NetworkSet{
		Key: key, Labels: map[string]string{list.Label: listName}, Nets: nets,
	}}})
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	blocked.Took, blocked.Programming = read+took.Sum(), took.Plan+took.Apply
	blocked.Note = fmt.Sprintf("read %d ms, %s", read.Milliseconds(), took)
	return blocked, nil
}
