package policytest

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/verdict"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/source/kubeobj"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/test/policytest/oracle"
)

// A Product is what Sluice makes of a cluster on the node called NodeName: objects through the
// translators, the store and the compiler into the state that a driver gets.
type Product struct {
	Compiler *compile.Compiler

	store  *store.Store
	events map[eventKey]store.Event
}

type eventKey struct {
	kind model.Kind
	name model.Name
}

// The prefixes of services, by family, and the address list and interface of the node that deny at
// arrival.
var (
	ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")}
	DenyList     = "bad"
	DenyDevice   = "eth0"
)

// NewProduct returns a Product of an empty cluster.
func NewProduct(links model.Links) *Product {
	p := &Product{
		Compiler: compile.New(compile.Config{Config: services.Config{Node: NodeName, ClusterCIDRs: PodCIDRs, ServiceCIDRs: ServiceCIDRs}, Policy: true, DenyLists: []string{DenyList}, DenyDevices: []string{DenyDevice}, FailsafeInbound: []state.PortRange{{Protocol: model.TCP, First: 22, Last: 22}}, FailsafeOutbound: []state.PortRange{{Protocol: model.UDP, First: 53, Last: 53}}}),
		store:    store.New(), events: map[eventKey]store.Event{},
	}
	p.Compiler.SetLinks(links)
	p.store.SetSynced()
	return p
}

// Set makes these the only objects there are and returns what changes in the state.
func (p *Product) Set(o *oracle.Objects) (state.Delta, error) {
	now, err := Events(o)
	if err != nil {
		return state.Delta{}, err
	}
	return p.Apply(p.changes(now)), nil
}

// Apply tells the store events, and returns what changes in the state.
func (p *Product) Apply(events []store.Event) state.Delta {
	p.tell(events)
	return p.Compiler.Update(p.store, p.store.Take())
}

// tell tells the store events.
func (p *Product) tell(events []store.Event) {
	for _, e := range events {
		if k := (eventKey{e.Kind, e.Name}); e.Object == nil {
			delete(p.events, k)
		} else {
			p.events[k] = e
		}
	}
	p.store.Apply(events)
}

// changes are the events that lead from what the store was told before to now.
func (p *Product) changes(now []store.Event) (events []store.Event) {
	there := map[eventKey]bool{}
	for _, e := range now {
		k := eventKey{e.Kind, e.Name}
		there[k] = true
		if old, ok := p.events[k]; !ok || !reflect.DeepEqual(old.Object, e.Object) {
			events = append(events, e)
		}
	}
	for k := range p.events {
		if !there[k] {
			events = append(events, store.Event{Kind: k.kind, Name: k.name})
		}
	}
	return events
}

// Events are those that tell a store of all the objects. It fails where a translator finds fault
// with one in any way but refusing an experimental field.
func Events(o *oracle.Objects) ([]store.Event, error) {
	t := &translation{}
	for _, n := range o.Nodes {
		v, err := kubeobj.Node(n)
		t.add(model.NodeKind, "", n.Name, v, v == nil, err)
	}
	for _, ns := range o.Namespaces {
		v, err := kubeobj.Namespace(ns)
		t.add(model.NamespaceKind, "", ns.Name, v, v == nil, err)
	}
	for _, pod := range o.Pods {
		v, err := kubeobj.Pod(pod)
		t.add(model.PodKind, pod.Namespace, pod.Name, v, v == nil, err)
	}
	for _, svc := range o.Services {
		v, err := kubeobj.Service(svc)
		t.add(model.ServiceKind, svc.Namespace, svc.Name, v, v == nil, err)
	}
	for _, slice := range o.Slices {
		v, err := kubeobj.EndpointSlice(slice)
		t.add(model.EndpointSliceKind, slice.Namespace, slice.Name, v, v == nil, err)
	}
	for _, np := range o.NetworkPolicies {
		v, err := kubeobj.NetworkPolicy(np)
		t.add(model.NetworkPolicy, np.Namespace, np.Name, v, v == nil, err)
	}
	for _, cnp := range o.ClusterPolicies {
		v, err := kubeobj.ClusterNetworkPolicy(cnp)
		if v != nil && strings.Contains(v.Refused, "experimental") {
			err = nil
		}
		t.add(model.ClusterPolicy, "", cnp.Name, v, v == nil, err)
	}
	t.addCalico(o.Calico)
	return t.events, t.err
}

type translation struct {
	events []store.Event
	err    error
}

func (t *translation) add(kind model.Kind, namespace, name string, object any, none bool, err error) {
	if err != nil || none {
		t.err = errors.Join(t.err, fmt.Errorf("translate %v %s/%s: %v", kind, namespace, name, err))
		return
	}
	t.events = append(t.events, store.Event{Kind: kind, Name: model.Name{Namespace: namespace, Name: name}, Object: object})
}

// Policy is the state's.
func (p *Product) Policy() *state.Policy { return p.Compiler.State().Policy }

// numbers are the IP protocols of the API's.
var numbers = map[corev1.Protocol]model.Protocol{corev1.ProtocolTCP: model.TCP, corev1.ProtocolUDP: model.UDP, corev1.ProtocolSCTP: model.SCTP}

// Walk evaluates a connection between pods, one of which at least is on the node.
func (p *Product) Walk(c oracle.Connection) []verdict.Step {
	f := verdict.Flow{Source: c.From, Destination: c.To, Protocol: uint8(numbers[c.Protocol]), SourcePort: 40000, DestinationPort: uint16(c.Port)}
	if slices.Contains(NodeAddresses, c.To) {
		return verdict.Input(p.Policy(), f, 0)
	}
	return verdict.Forward(p.Policy(), f, 0, 0)
}

// Allowed reports whether no step of the walk denies.
func (p *Product) Allowed(c oracle.Connection) bool {
	_, denied := verdict.Denial(p.Walk(c))
	return !denied
}

// LinksOf are the links of a node with an interface and host routes for each of its pods, beside
// one of its own.
func LinksOf(o *oracle.Objects) model.Links {
	l := model.Links{Links: []model.Link{{Index: 2, Name: "eth0", Host: true}}, Local: slices.SortedFunc(slices.Values(NodeAddresses), netip.Addr.Compare)}
	for i, p := range o.Pods {
		if p.Spec.HostNetwork || p.Spec.NodeName != NodeName {
			continue
		}
		index := 10 + i
		l.Links = append(l.Links, model.Link{Index: index, Name: fmt.Sprint("pod", i), Pod: true})
		for _, ip := range p.Status.PodIPs {
			a := netip.MustParseAddr(ip.IP)
			l.Routes = append(l.Routes, model.LinkRoute{Prefix: netip.PrefixFrom(a, a.BitLen()), Link: index})
		}
	}
	slices.SortFunc(l.Routes, func(a, b model.LinkRoute) int { return a.Prefix.Compare(b.Prefix) })
	return l
}
