package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/preflight"
	"sluice.dev/sluice/internal/services/takeover"
)

var (
	errNotReady        = errors.New("this node cannot carry services and policy yet: see the failed checks")
	errPoliciesRefused = errors.New("not all policies can be carried out as they are written: see the failed checks")
)

func newPreflightCommand() *cobra.Command {
	var socket, format string
	var node nodeFlags
	var policies, encrypt bool
	accelerate := nodeAccelerators()
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Check whether this node can carry services and policy, and say how to fix what is missing",
		Long: `Check whether this node can carry services and policy: kernel, privileges, routes,
forwarding, connection tracking, bridges, rules of other programs that would drop our
traffic, programs that do part of our work (kube-proxy, Calico, Cilium, kube-router),
ports, service addresses that belong to a node, and memory limits; with --fabric, the devices of its
mode, and settings of interfaces that are known to ruin tunnels; with --accelerate, whether each can be
on, and at which of the ways out of the node it cannot.

With --fabric and the source of objects that the agent would have, the way to the other nodes is
tried with packets as tunnels send them, and with --bgp that to BGP peers: a firewall between nodes
that drops them says nothing to anybody. While an agent runs with tunnels of that kind, it is asked what
it hears.

With --policies, and the source of objects that the agent would have, check the policies instead,
before an agent enforces them: which are refused, by Sluice or by the kernel (they are programmed
in a network namespace apart), what each choice of --unsupported would come to for those, which
connections of this node policies would deny, and which select nothing. Nothing is changed. The flags are those that the agent is to have; without --policies, only
--mode, --policy, --fabric, --flow-offload, --accelerate and --service-cidr count. --mode auto says which mode
would be chosen, and why.

The exit status is 3 if a check fails. Warnings do not count.`,
		Example: "  sluice preflight\n  sluice preflight --fabric pools --kubeconfig /etc/kubernetes/admin.conf\n  sluice preflight --policies --kubeconfig /etc/kubernetes/admin.conf",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			policy, cidrs := node.compiler.Policy, node.compiler.ServiceCIDRs
			switch err := node.checkObjects(); {
			case policies && err != nil:
				return err
			case !policies && !node.compiler.Fabric && !errors.Is(err, errNoObjects):
				return cli.Usage(errors.New("--manifests, --kubeconfig and --in-cluster name policies to check, or nodes to try the way to: give --policies or --fabric, too"))
			}
			if policies {
				results, err := preflightPolicies(cmd.Context(), &node)
				if err != nil {
					return err
				}
				return showChecks(cmd, format, results, errPoliciesRefused)
			}
			mode, why, err := node.choose(cmd.Context())
			if err != nil {
				return err
			}
			optional := mode.optional
			if node.flowOffload {
				optional = append(slices.Clone(optional), nftables.FlowOffload)
			}
			var heard []preflight.Result
			nodes := 0
			if node.compiler.Fabric {
				heard, nodes = preflightHeard(cmd.Context(), &node, encrypt, socket)
			}
			facts := preflight.Gather(cmd.Context(), preflight.Options{Socket: socket, ServiceCIDRs: cidrs, Policy: policy && mode.policy != nil,
				Fabric: fabricNeeds(&node.compiler, encrypt), Nodes: cmp.Or(nodes, knownNodes(cmd.Context(), socket)), Mode: mode.name, ModeReason: why, Requirements: mode.requirements(), PolicyRequirements: mode.policy, Optional: optional,
				Driver:  func(ctx context.Context) (name, lacks string, err error) { return node.probeDriver(ctx, mode, policy) },
				Refused: func(ctx context.Context) ([]string, error) { return refusedAddresses(ctx, socket) }})
			return showChecks(cmd, format, slices.Concat(preflight.Check(facts), heard, accelerate.check(mode, policy)), errNotReady)
		},
	}
	node.register(cmd)
	socketFlag(cmd, &socket)
	cli.OutputFlag(cmd, &format)
	cmd.Flags().Var(fabricMode{&node.compiler}, "fabric", "check for this mode of the pod network between nodes, as in 'sluice run'")
	cmd.Flags().Var(accelerate, "accelerate", "check for what eBPF programs are to make faster, too, as in 'sluice run'")
	cmd.Flags().BoolVar(&encrypt, "encrypt", false, "with --fabric: check for WireGuard, too")
	cmd.Flags().BoolVar(&node.compiler.BGP, "bgp", false, "with --fabric: try the way to BGP peers, too")
	cmd.Flags().BoolVar(&policies, "policies", false, "check policies, before they are enforced, in place of the node")
	return cmd
}

// showChecks prints results, and returns that failed was found if one of them is a failure.
func showChecks(cmd *cobra.Command, format string, results []preflight.Result, failed error) error {
	err := cli.Print(cmd.OutOrStdout(), format, results, func(w io.Writer) { preflight.Print(w, results) })
	if err == nil && preflight.Failed(results) {
		err = cli.Found(failed)
	}
	return err
}

func (f *nodeFlags) probeDriver(ctx context.Context, m *mode, policy bool) (name, lacks string, err error) {
	d, err := f.openDriver(m, driver.Options{Policy: policy})
	if err != nil {
		return "", "", err
	}
	can, asked := d.Capabilities(), driver.All&^(driver.Fabric|driver.Farms)
	if !policy {
		asked &^= driver.Policy | driver.HostPolicy | driver.UntrackedPolicy
	}
	return can.Name, (asked &^ can.Can).String(), errors.Join(d.Probe(ctx), d.Close())
}

// knownNodes is how many Nodes an agent of this node knows; 0: there is no agent, or it knows none.
func knownNodes(ctx context.Context, socket string) int {
	if !agent.Alive(socket) || agent.Elsewhere(socket) != 0 {
		return 0
	}
	status, _ := agent.NewClient(socket).Status(ctx) // whether it answers is told by other checks
	return status.Objects[string(model.NodeKind)]
}

// refusedAddresses names what the agent refuses to services. If there is no agent, it names what
// kube-proxy serves and an agent without further flags would not.
func refusedAddresses(ctx context.Context, socket string) (refused []string, err error) {
	if agent.Alive(socket) && agent.Elsewhere(socket) == 0 {
		status, err := agent.NewClient(socket).Status(ctx)
		for _, issue := range status.Issues {
			if issue.Refused {
				refused = append(refused, issue.String())
			}
		}
		return refused, err
	}
	own, err := link.Here.HostAddresses()
	if err != nil {
		return nil, err
	}
	theirs, err := takeover.Served(ctx)
	for _, f := range theirs {
		switch {
		case f.NodePort() && defaultReserved().has(f.Key.Protocol, f.Key.Port):
			refused = append(refused, "kube-proxy serves "+f.String()+", which is one of the agent's --reserved-ports")
		case slices.ContainsFunc(own, func(p netip.Prefix) bool { return !p.IsSingleIP() && p.Addr() == f.Key.Addr }):
			refused = append(refused, "kube-proxy serves "+f.String()+", which is this node's own address")
		}
	}
	return refused, err
}
