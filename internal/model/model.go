// Package model holds what users declare — services, endpoint slices, pods,
// nodes — as plain Go values on net/netip, free of any source's wire format.
//
// Values are immutable once handed over: a source builds a new value for each
// version of an object, and everyone downstream shares it without copying.
package model

import (
	"cmp"
	"net/netip"
	"time"
)

// Name identifies a namespaced object; Namespace is empty for cluster-scoped ones.
type Name struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// String returns "namespace/name", or "name" alone for cluster-scoped objects.
func (n Name) String() string {
	if n.Namespace == "" {
		return n.Name
	}
	return n.Namespace + "/" + n.Name
}

// Compare orders names by namespace, then name.
func (n Name) Compare(o Name) int {
	if c := cmp.Compare(n.Namespace, o.Namespace); c != 0 {
		return c
	}
	return cmp.Compare(n.Name, o.Name)
}

// Protocol is an IANA protocol number of a transport that services can use.
type Protocol uint8

// The transports of the Kubernetes Service API.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns the Kubernetes spelling: "TCP", "UDP" or "SCTP".
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return "unknown"
}

// Service is a v1 Service, reduced to what a service proxy acts on.
//
// A Service of type ExternalName, a headless one (clusterIP None, or the label
// service.kubernetes.io/headless) and one with the label
// service.kubernetes.io/service-proxy-name have Unproxied set: they are known,
// listed, and never programmed.
type Service struct {
	Name    Name
	Created time.Time // see Birth

	Unproxied string // why nothing is programmed ("headless", …); empty for ordinary services

	ClusterIPs      []netip.Addr
	ExternalIPs     []netip.Addr
	LoadBalancerIPs []netip.Addr  // status.loadBalancer.ingress[].ip with ipMode VIP (the default) only
	LoadBalancer    *LoadBalancer // nil: its type is another, and its status has no such address
	Ports           []ServicePort
	Selector        map[string]string // nil: endpoints are given by slices alone

	Affinity            time.Duration // ClientIP affinity time-out; 0: none
	InternalLocal       bool          // internalTrafficPolicy: Local
	ExternalLocal       bool          // externalTrafficPolicy: Local
	HealthCheckNodePort uint16        // 0: none
	SourceRanges        []netip.Prefix
	PublishNotReady     bool // publishNotReadyAddresses
	// IPVSScheduler is how backends are chosen where IPVS does that, one of IPVSSchedulers; "": as
	// the node says.
	IPVSScheduler string
}

// IPVSSchedulers are those of Linux, by the names that IPVS has for them.
var IPVSSchedulers = []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "mh", "fo", "ovf"}

// LoadBalancer is what a Service says of the addresses that a pool gives it.
type LoadBalancer struct {
	Wanted  bool         // the Service is of type LoadBalancer
	Class   string       // spec.loadBalancerClass
	Ingress []netip.Addr // those that its status has, whatever their mode
	// Writer is the field manager of Ingress, as far as the API tells; "": Sluice, or nobody.
	Writer string

	IPs             []netip.Addr // those that it asks for; none: any
	Pool            string       // the pool that it asks for; "": any
	SharingKey      string       // Services with the same key may share an address; "": with none
	PreferDualStack bool         // an address of one family will do where there is none of the other
	Fault           string       // why what it asks for makes no sense; "": it does
	Labels          map[string]string
}

// Headless is Service.Unproxied of a service without an address of its own: clients get those of
// its endpoints from DNS.
const Headless = "headless"

// ServicePort is one port of a Service.
type ServicePort struct {
	Name       string
	Protocol   Protocol
	Port       uint16
	NodePort   uint16 // 0: none
	TargetPort uint16 // 0 when TargetName is set
	TargetName string // a named container port, resolved per pod
}

// On returns the port of a pod that the service port leads to; 0: the pod has none.
func (p *ServicePort) On(pod *Pod) uint16 {
	switch {
	case p.TargetName != "":
		for _, own := range pod.Ports {
			if own.Name == p.TargetName && own.Protocol == p.Protocol {
				return own.Port
			}
		}
		return 0
	case p.TargetPort != 0:
		return p.TargetPort
	}
	return p.Port
}

// Offers reports whether a pod that the service selects is a ready endpoint of it, as the
// EndpointSlice controller would say.
func (s *Service) Offers(pod *Pod) bool {
	return !pod.Finished && (s.PublishNotReady || pod.Ready && !pod.Terminating)
}

// EndpointSlice is a discovery.k8s.io/v1 EndpointSlice of one address family.
type EndpointSlice struct {
	Name      Name
	Service   string // the label kubernetes.io/service-name; same namespace
	Ports     []EndpointPort
	Endpoints []Endpoint

	// Triggered is when the change of a pod or service happened that this version tells of, by the
	// clock of who wrote it (the annotation endpoints.kubernetes.io/last-change-trigger-time);
	// zero: not known. It is for metrics alone, and makes no difference between two versions.
	Triggered time.Time
}

// EndpointPort is one port that all endpoints of a slice serve.
type EndpointPort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// Endpoint is one address of an EndpointSlice; an API endpoint with several
// addresses becomes several of these.
type Endpoint struct {
	Addr                        netip.Addr
	Ready, Serving, Terminating bool // nil conditions are already resolved as the API defines: ready true, serving = ready, terminating false
	Node, Zone                  string
	ZoneHints, NodeHints        []string
}

// Pod is a v1 Pod, reduced to what selects it and where it can be reached.
type Pod struct {
	Name        Name
	Labels      map[string]string
	IPs         []netip.Addr
	Node        string
	HostNetwork bool
	Ready       bool // condition Ready is True
	Terminating bool // has a deletionTimestamp
	Finished    bool // phase Succeeded or Failed: it has no network any more
	Ports       []ContainerPort

	ServiceAccount string // spec.serviceAccountName
}

// ContainerPort is a port that a container of a pod declares.
type ContainerPort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// Node is a v1 Node.
type Node struct {
	Name    string
	Labels  map[string]string
	Created time.Time    // see Birth
	IPs     []netip.Addr // InternalIPs, or a family's ExternalIPs where it has none, in the order of the object; the first of a family is its primary
	// External is how many of IPs, the last ones, are ExternalIPs.
	External int
	// OtherIPs are its ExternalIPs that are not among IPs.
	OtherIPs []netip.Addr
	PodCIDRs []netip.Prefix
	// NotReady: its condition Ready is False or Unknown.
	NotReady bool
	// Networked: its condition NetworkUnavailable is False.
	Networked bool
	// Leaving: it has a deletionTimestamp, or the taint by which the cluster
	// autoscaler says that it is about to delete it.
	Leaving bool
	Taints  []string    // keys of all its taints
	Fabric  *NodeFabric // nil: Calico's annotations say nothing
}

// Zone returns the node's topology zone (label topology.kubernetes.io/zone), or "".
func (n *Node) Zone() string { return n.Labels["topology.kubernetes.io/zone"] }

// Namespace is a v1 Namespace.
type Namespace struct {
	Name   string
	Labels map[string]string
}

// ServiceAccount is a v1 ServiceAccount, reduced to what selectors ask of it.
type ServiceAccount struct {
	Name   Name
	Labels map[string]string
}

// Issue is a fault found in what users declared. The object keeps its last
// good state in the kernel, or has none, and everything else works on.
type Issue struct {
	Object Ref    `json:"object"`           // or a file's name, as its Kind, where no object could be read
	Source string `json:"source,omitempty"` // where it was declared: "web.yaml", "web.yaml:12"
	Reason string `json:"reason"`           // what is wrong and, where that helps, what to do
	// InForce says what is in force in the meantime: one of the texts below. Empty
	// where that is no matter, or not known.
	InForce string `json:"inForce,omitempty"`
	// Everywhere: every node finds it with the same Reason, as it lies in the object itself, or
	// between objects.
	Everywhere bool `json:"-"`
	// Refused: an address or port that a Service asks for, and may not have.
	Refused bool `json:"refused,omitempty"`
}

// Compare orders by object, source and reason.
func (i Issue) Compare(o Issue) int {
	return cmp.Or(i.Object.Compare(o.Object), cmp.Compare(i.Source, o.Source), cmp.Compare(i.Reason, o.Reason))
}

// What is in force of an object that is at fault.
const (
	InForceRest    = "the rest of it" // what is at fault is left out
	InForceLast    = "its last good version"
	InForceDeny    = "it denies all that it selects"                        // a policy that was refused
	InForceIsolate = "it isolates what it selects, and allows nothing"      // a NetworkPolicy that was refused: others go on allowing
	InForceDoubt   = "nothing of it, and rules deny all that it might hold" // a network set that was refused
	// The same, of which something could be read.
	InForceIsolateRest = "it isolates what it selects, and allows what could be read of its rules"
	InForceDoubtRest   = "what could be read of it, and rules deny all that it might hold besides"
	InForceTier        = "its policies deny all that they select" // a tier that was refused
	InForceNothing     = "nothing of it"
)

// A StandIn is an object that can stand in for one that is at fault, as long as no good version of
// that is known.
type StandIn interface {
	// StandIn says what is in force of the object at fault; "" means that this one is good.
	StandIn() string
	// Refuse makes it a stand-in, with no more in it than why the object was refused.
	Refuse(why error)
}

// String returns "Service shop/web (web.yaml:12): what is wrong; in force: nothing of it", as
// Printable has it.
func (i Issue) String() string { return Printable(i.head() + ": " + i.Text()) }

// head is the object, and where it was declared.
func (i Issue) head() string {
	if i.Source == "" {
		return i.Object.String()
	}
	return i.Object.String() + " (" + i.Source + ")"
}

// Text returns "what is wrong; in force: nothing of it".
func (i Issue) Text() string {
	if i.InForce == "" {
		return i.Reason
	}
	return i.Reason + "; in force: " + i.InForce
}
