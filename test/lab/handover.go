package lab

import (
	"context"
	"errors"
)

// These methods move a node between kube-proxy and the agent, in a lab with a control plane whose
// nodes kube-proxy serves. Such a lab has agents only if it was opened with one (Open).

// StartAgent starts the agent on a node, beside kube-proxy if that runs there, and returns once it
// has programmed everything.
func (l *Lab) StartAgent(ctx context.Context, node string) error {
	n := l.Cluster.Node(node)
	if n == nil || l.agent == nil {
		return errors.New("start agent: there is no such node, or the lab was opened without agents")
	}
	if err := l.startAgent(n); err != nil {
		return err
	}
	ctx, cancel := within(ctx, syncTimeout)
	defer cancel()
	return l.syncNode(ctx, node)
}

// KillAgent kills the agent of a node, if it has one.
func (l *Lab) KillAgent(node string) error { return l.agentProcess(node).Kill() }

// StartKubeProxy starts kube-proxy on a node, beside the agent if that runs there.
func (l *Lab) StartKubeProxy(node string) error {
	n := l.Cluster.Node(node)
	if n == nil || l.Kubernetes == nil || l.Kubernetes.Proxy == "" {
		return errors.New("start kube-proxy: there is no such node, or kube-proxy does not serve the nodes of this lab")
	}
	return l.startKubeProxy(n)
}

// KillKubeProxy kills the kube-proxy of a node, if it has one.
func (l *Lab) KillKubeProxy(node string) error { return l.process(node, kubeProxy).Kill() }
