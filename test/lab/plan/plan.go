// Package plan determines what a lab cluster looks like: from a user's manifests to nodes, placed
// pods with addresses, Services with everything that a cluster allocates for them, EndpointSlices,
// and names. It does the work of the API server, the scheduler, the address managers and the
// controllers of a real cluster, as far as it matters to a service proxy and network policies. It
// is pure except for Read.
package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxNodes is the largest number of nodes of a lab: each has one /24 of the pods' addresses and one
// address of the underlay.
const MaxNodes = 200

// Subnet returns the address ranges of a subnet of the underlay, which are numbered from 0.
func Subnet(i int) []netip.Prefix {
	return prefixes(fmt.Sprintf("10.10.%d.0/24", i), fmt.Sprintf("fd00:10:10:%x::/64", i))
}

// These are the address ranges, first IPv4, then IPv6. They are the same in every lab, as labs
// share nothing.
var (
	ClusterCIDRs  = prefixes("10.244.0.0/16", "fd00:10:244::/48")
	ServiceCIDRs  = prefixes("10.96.0.0/16", "fd00:10:96::/112")
	BalancerCIDRs = prefixes("198.51.100.0/24", "2001:db8:51::/112") // LoadBalancer ingress addresses
)

// Outside is the name of the client host that is on the underlay but not in the cluster.
const Outside = "outside"

// Control is the name of the host that runs the control plane of a lab that has one.
const Control = "control"

// ControlIPs are the addresses of the host Control.
var ControlIPs = hosts(Subnet(0), 2)

// Router is the name of the host that joins the subnets of a lab that has several.
const Router = "router"

// RouterIPs are the addresses of the host Router on a subnet.
func RouterIPs(subnet int) []netip.Addr { return hosts(Subnet(subnet), 3) }

// Node is a node of the lab.
type Node struct {
	Name     string
	Zone     string
	Subnet   int          `json:",omitempty"` // of the underlay
	IPs      []netip.Addr // there, IPv4 then IPv6
	PodCIDRs []netip.Prefix
}

// Route is the node to which the outside host routes a service address.
type Route struct {
	Addr netip.Addr
	Node string
}

// Cluster is the whole plan. Its fields are read-only; Scale and Mark change it. It survives a
// round trip through JSON.
type Cluster struct {
	Created    time.Time
	Fabric     Fabric `json:",omitempty"`
	Nodes      []Node
	OutsideIPs []netip.Addr
	Namespaces []*corev1.Namespace
	Accounts   []*corev1.ServiceAccount // passed on unchanged
	Workloads  []Workload
	Pods       []*corev1.Pod // placed; in the order of the workloads
	Services   []*corev1.Service
	Given      []*discoveryv1.EndpointSlice // from the manifests, passed on as they are
	Slices     []*discoveryv1.EndpointSlice // made from selectors
	Policies   []Policy                     // of all policy APIs, passed on as they are
	Routes     []Route
	Passed     map[string]int // objects passed over, by kind
	Notes      []string       // where the lab deviates from a manifest, and why
	Turn       int            // the next node in the round-robin
}

// Size is how many nodes a cluster has, and how they reach each other's pods.
type Size struct {
	Nodes  int
	Fabric Fabric
}

// New plans a cluster of a size with the objects, and modifies these. All objects count as created
// at the given time. What a cluster would not accept is left out, with a note.
func New(size Size, objs *Objects, created time.Time) (*Cluster, error) {
	n := size.Nodes
	if n < 1 || n > MaxNodes {
		return nil, fmt.Errorf("plan cluster: %d nodes asked for; a lab has 1 to %d", n, MaxNodes)
	}
	c := &Cluster{
		Fabric:     size.Fabric,
		Created:    created.UTC().Truncate(time.Second),
		OutsideIPs: hosts(Subnet(0), 1),
		Workloads:  objs.Workloads,
		Accounts:   objs.Accounts,
		Given:      objs.Slices,
		Policies:   objs.Policies,
		Passed:     objs.Passed,
		Notes:      objs.Faults,
	}
	for i := 1; i <= n; i++ {
		c.Nodes = append(c.Nodes, newNode(i, size))
	}
	c.addNamespaces(objs)
	c.addServices(objs.Services)
	c.reconcile()
	return c, nil
}

// Scale changes a workload's replicas: the highest numbers go first. DaemonSets and bare Pods do
// not scale.
func (c *Cluster) Scale(kind, namespace, name string, replicas int) error {
	for i := range c.Workloads {
		w := &c.Workloads[i]
		if w.Kind == kind && w.Namespace == namespace && w.Name == name && w.scales() {
			w.Replicas = replicas
			c.reconcile()
			return nil
		}
	}
	return fmt.Errorf("scale %s %s/%s: the lab has no such workload that scales", kind, namespace, name)
}

// Mark sets a pod's readiness, and whether it is being deleted. Its server keeps answering in any
// case, as a draining pod's does.
func (c *Cluster) Mark(namespace, pod string, ready, terminating bool) error {
	for _, p := range c.Pods {
		if p.Namespace == namespace && p.Name == pod {
			p.Status.Conditions = conditions(ready, c.Created)
			p.DeletionTimestamp = nil
			if terminating {
				p.DeletionTimestamp = &metav1.Time{Time: c.Created}
			}
			c.reconcile()
			return nil
		}
	}
	return fmt.Errorf("mark pod %s/%s: the lab has no such pod", namespace, pod)
}

// SetAddrs sets the addresses of a pod that got others than planned.
func (c *Cluster) SetAddrs(p *corev1.Pod, addrs []netip.Addr) {
	if slices.Equal(Addrs(p), addrs) {
		return
	}
	setAddrs(&p.Status, addrs)
	c.reconcile()
}

// Node returns a node by name, or nil.
func (c *Cluster) Node(name string) *Node {
	for i := range c.Nodes {
		if c.Nodes[i].Name == name {
			return &c.Nodes[i]
		}
	}
	return nil
}

// reconcile brings pods, slices and routes in line with workloads and services; what exists stays.
func (c *Cluster) reconcile() {
	c.place()
	c.Slices = nil
	for _, svc := range c.Services {
		c.Slices = append(c.Slices, c.slices(svc)...)
	}
	c.route()
}

// note adds a note, once.
func (c *Cluster) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(c.Notes, text) {
		c.Notes = append(c.Notes, text)
	}
}

// newNode makes node i (from 1), in one of three zones.
func newNode(i int, size Size) Node {
	subnet := (i - 1) % size.Fabric.Subnets()
	return Node{
		Name:   fmt.Sprintf("node%d", i),
		Zone:   fmt.Sprintf("zone-%c", 'a'+(i-1)%min(size.Nodes, 3)),
		Subnet: subnet,
		IPs:    hosts(Subnet(subnet), 10+i),
		PodCIDRs: prefixes(
			fmt.Sprintf("10.244.%d.0/24", i),
			fmt.Sprintf("fd00:10:244:%x::/64", i)),
	}
}

// Object returns the node as an API object.
func (n *Node) Object(created time.Time) *corev1.Node {
	node := &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{
			Name:              n.Name,
			CreationTimestamp: metav1.Time{Time: created},
			Labels: map[string]string{
				corev1.LabelHostname:     n.Name,
				corev1.LabelTopologyZone: n.Zone,
				corev1.LabelOSStable:     "linux",
			},
		},
	}
	for _, p := range n.PodCIDRs {
		node.Spec.PodCIDRs = append(node.Spec.PodCIDRs, p.String())
	}
	node.Spec.PodCIDR = node.Spec.PodCIDRs[0]
	for _, a := range n.IPs {
		node.Status.Addresses = append(node.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	node.Status.Addresses = append(node.Status.Addresses,
		corev1.NodeAddress{Type: corev1.NodeHostName, Address: n.Name})
	node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Time{Time: created},
	}}
	return node
}

// addNamespaces takes the declared namespaces and adds those of other objects.
func (c *Cluster) addNamespaces(objs *Objects) {
	have := map[string]bool{}
	add := func(ns *corev1.Namespace) {
		if have[ns.Name] {
			return
		}
		have[ns.Name] = true
		ns.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}
		if ns.Labels == nil {
			ns.Labels = map[string]string{}
		}
		ns.Labels[corev1.LabelMetadataName] = ns.Name
		c.Namespaces = append(c.Namespaces, ns)
	}
	for _, ns := range objs.Namespaces {
		add(ns)
	}
	implied := func(name string) { add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}) }
	implied(metav1.NamespaceDefault)
	for _, w := range objs.Workloads {
		implied(w.Namespace)
	}
	for _, s := range objs.Services {
		implied(s.Namespace)
	}
	for _, s := range objs.Slices {
		implied(s.Namespace)
	}
	for _, p := range objs.Policies {
		if p.Namespace != "" {
			implied(p.Namespace)
		}
	}
}

func prefixes(ss ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range ss {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

// hosts returns the i-th address of each prefix.
func hosts(ps []netip.Prefix, i int) []netip.Addr {
	var as []netip.Addr
	for _, p := range ps {
		as = append(as, Nth(p, i))
	}
	return as
}

// Nth returns the address i after the prefix's own; i is below 2^16.
func Nth(p netip.Prefix, i int) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	low := int(b[len(b)-2])<<8 | int(b[len(b)-1]) + i
	b[len(b)-2], b[len(b)-1] = byte(low>>8), byte(low)
	a, _ := netip.AddrFromSlice(b)
	return a
}
