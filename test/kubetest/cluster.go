package kubetest

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

// Cluster is a dual-stack Kubernetes cluster whose nodes and pods are network namespaces of this
// machine. Its nodes are node1 and node4 in zone-a, node2 in zone-b, and node3 in zone-c. A host
// named outside does not belong to the cluster; through it the nodes reach everything else.
type Cluster interface {
	// Config is an administrator's configuration for the API server.
	Config() *rest.Config
	// HostNS returns the name of the network namespace of a node, or of the host outside.
	HostNS(host string) string
	// PodNS returns the name of the network namespace of a pod.
	PodNS(pod *corev1.Pod) string
	// RestartProxy kills the service proxy of a node, and starts it again.
	RestartProxy(ctx context.Context, node string) error
	// RestartAPI kills the API server and starts it again. It returns once the server answers.
	RestartAPI(ctx context.Context) error
}

// outside is the host that is no node.
const outside = "outside"

// nodes are the names of the cluster's nodes.
var nodes = []string{"node1", "node2", "node3", "node4"}

// Dataplane is the service proxy on the nodes.
type Dataplane string

// These are the data planes whose differences the table knows.
const (
	Sluice   Dataplane = "Sluice"
	NFTables Dataplane = "kube-proxy nftables"
	IPTables Dataplane = "kube-proxy iptables"
)

// Dataplanes lists all of them, in the order of columns.
func Dataplanes() []Dataplane { return []Dataplane{Sluice, NFTables, IPTables} }
