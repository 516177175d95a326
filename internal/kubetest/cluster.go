package kubetest

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

// Cluster is a Kubernetes cluster of dual stack whose nodes and pods are network namespaces of this
// machine. Its nodes are node1 and node4 in zone-a, node2 in zone-b, and node3 in zone-c; a host
// named outside is no part of the cluster and the nodes' way to everywhere else.
type Cluster interface {
	// Config is how an administrator reaches the API server.
	Config() *rest.Config
	// HostNS names the network namespace of a node, or of the host outside.
	HostNS(host string) string
	// PodNS names the network namespace of a pod.
	PodNS(pod *corev1.Pod) string
	// RestartProxy kills what balances services on a node, and starts it again.
	RestartProxy(ctx context.Context, node string) error
	// RestartAPI kills the API server and starts it again. It returns once the server answers.
	RestartAPI(ctx context.Context) error
}

// outside is the host that is no node.
const outside = "outside"

// nodes are the names of the cluster's nodes.
var nodes = []string{"node1", "node2", "node3", "node4"}

// Dataplane is what balances services on the nodes.
type Dataplane string

// The dataplanes that the table knows differences of.
const (
	Sluice   Dataplane = "Sluice"
	NFTables Dataplane = "kube-proxy nftables"
	IPTables Dataplane = "kube-proxy iptables"
)

// Dataplanes lists all of them, in the order of columns.
func Dataplanes() []Dataplane { return []Dataplane{Sluice, NFTables, IPTables} }
