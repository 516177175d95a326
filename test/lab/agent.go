package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/process"
)

// Agent is the program that balances services on each node.
type Agent struct {
	// Command is the command line that runs it, in the node's network namespace.
	Command func(AgentConfig) []string
	// Flags are those of Command that are alike on all nodes, for agents that are installed.
	Flags func(AgentConfig) []string
	// Sync returns once the agent behind a socket has programmed everything in its folder. Faulty
	// objects are returned as issues. An error means "not yet"; the call is repeated while the
	// agent lives.
	Sync func(ctx context.Context, socket string) (issues []string, err error)
	// Knows reports whether the agent behind a socket lets a pod of its node send and receive, as
	// far as policies allow: an agent drops packets of pods that it does not know yet, even after
	// it has read its folder. nil: all pods are known.
	Knows func(ctx context.Context, socket string, pod *corev1.Pod) (bool, error)
	// Socket is the default socket of the agent's own commands: on each node of the lab they find
	// that node's agent there.
	Socket string
}

// AgentConfig is what an agent needs to start.
type AgentConfig struct {
	Sluice       string // the lab's own, see Config
	Node         string
	Manifests    string // the folder of objects, or "" if it follows Kubeconfig
	Kubeconfig   string // of the cluster's API
	Socket       string // path of its API's Unix socket
	ClusterCIDRs []netip.Prefix
	ServiceCIDRs []netip.Prefix
	Fabric       string   // as the lab has it; "": the agent reaches no pods of other nodes
	Flags        []string // further ones of the lab's
}

// syncTimeout is the time-out for agents to program everything.
const syncTimeout = time.Minute

// socket is the path of the socket of a node's agent: in the folder that mountAgent shows to
// commands on the node, which may remove it.
func (l *Lab) socket(node string) string {
	name := "agent.sock"
	switch {
	case l.installed():
		name = filepath.Base(agent.DefaultSocket)
	case l.agent != nil && l.agent.Socket != "":
		name = filepath.Base(l.agent.Socket)
	}
	return filepath.Join(l.runFolder(node), name)
}

func (l *Lab) runFolder(node string) string { return l.path(node, "run") }

func (l *Lab) startAgent(n *plan.Node) error {
	c := l.agentConfig(n.Name)
	if l.Kubernetes == nil {
		c.Manifests = l.manifests()
	} else {
		c.Kubeconfig = l.path(plan.Control, "sluice.kubeconfig")
	}
	if err := os.MkdirAll(l.runFolder(n.Name), 0o755); err != nil {
		return fmt.Errorf("make folder for the agent's socket: %w", err)
	}
	return l.start(n.Name, agentName, l.agent.Command(c))
}

// agentConfig is what the agent of a node needs, but for its source.
func (l *Lab) agentConfig(node string) AgentConfig {
	return AgentConfig{
		Sluice: l.Sluice, Node: node, Socket: l.socket(node), ClusterCIDRs: plan.ClusterCIDRs, ServiceCIDRs: plan.ServiceCIDRs,
		Fabric: string(l.Cluster.Fabric), Flags: l.AgentFlags,
	}
}

// agentProcess is the process of a node's agent; the zero value if there never was one, or the lab
// has installed the agents and this one does not run.
func (l *Lab) agentProcess(node string) process.Process {
	if !l.installed() {
		return l.process(node, agentName)
	}
	return process.Behind(l.socket(node))
}

// agentName is what a process of an agent is recorded as.
const agentName = "agent"

// Sync returns once every agent has programmed everything in the lab's folder, and knows its pods.
// Faults that the agents find become warnings. Without agents it returns at once.
func (l *Lab) Sync(ctx context.Context) error {
	if l.agent == nil {
		return nil
	}
	ctx, cancel := within(ctx, syncTimeout)
	defer cancel()
	for _, n := range l.Cluster.Nodes {
		if err := l.syncNode(ctx, n.Name); err != nil {
			return err
		}
	}
	return nil
}

// syncNode is Sync for one node's agent.
func (l *Lab) syncNode(ctx context.Context, node string) error {
	err := l.await(ctx, node, agentName, func() (bool, error) {
		issues, err := l.agent.Sync(ctx, l.socket(node))
		for _, issue := range issues {
			l.warn("agents: %s", issue)
		}
		return err == nil, err
	})
	if err == nil {
		err = l.awaitKnown(ctx, node)
	}
	if err != nil {
		return fmt.Errorf("synchronise agents: %w", err)
	}
	return nil
}

// RestartAgent kills the agent of a node, as a crash would, starts it again, and returns once it is
// in sync. The node's pods, and its kubelet in a lab with a control plane, keep running, and so
// does all traffic.
func (l *Lab) RestartAgent(ctx context.Context, node string) error {
	if l.Cluster.Node(node) == nil {
		return fmt.Errorf("restart the agent of %s: lab %s has no node of that name; choose from %s", node, l.Name, l.nodeNames())
	}
	if l.agent == nil || !l.installed() && l.agentProcess(node).PID == 0 {
		return fmt.Errorf("restart the agent of %s: lab %s has been started without agents", node, l.Name)
	}
	if err := l.refresh(ctx); err != nil {
		return err
	}
	if err := l.KillAgent(node); err != nil {
		return err
	}
	if l.installed() { // the kubelet starts it again
		return l.syncNode(ctx, node)
	}
	return l.StartAgent(ctx, node)
}

func (l *Lab) nodeNames() string {
	var names []string
	for _, n := range l.Cluster.Nodes {
		names = append(names, n.Name)
	}
	return strings.Join(names, ", ")
}

// awaitKnown waits until a node's agent knows all pods that have a network of their own.
func (l *Lab) awaitKnown(ctx context.Context, node string) error {
	if l.agent.Knows == nil {
		return nil
	}
	for _, p := range l.Cluster.Pods {
		if p.Spec.NodeName != node || p.Spec.HostNetwork {
			continue
		}
		err := l.await(ctx, node, agentName, func() (bool, error) {
			known, err := l.agent.Knows(ctx, l.socket(node), p)
			if known || err != nil {
				return known, err
			}
			err = l.refresh(ctx) // it may have gone since
			return !slices.ContainsFunc(l.Cluster.Pods, func(now *corev1.Pod) bool { return now.UID == p.UID }), err
		})
		if err != nil {
			return fmt.Errorf("wait until pod %s/%s is known: %w", p.Namespace, p.Name, err)
		}
	}
	return nil
}
