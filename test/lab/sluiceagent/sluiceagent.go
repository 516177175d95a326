// Package sluiceagent has Sluice serve the nodes of a lab.
package sluiceagent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/question"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/plan"
)

// New returns the agent of Sluice, as users run it, policy included.
func New() *lab.Agent {
	return &lab.Agent{
		Socket: agent.DefaultSocket,
		Command: func(c lab.AgentConfig) []string {
			source := []string{"--manifests", c.Manifests}
			if c.Kubeconfig != "" {
				source = []string{"--kubeconfig", c.Kubeconfig}
			}
			return slices.Concat([]string{c.Sluice, "run", "--node", c.Node, "--socket", c.Socket}, source, flags(c))
		},
		Flags: flags,
		Sync: func(ctx context.Context, socket string) ([]string, error) {
			client := agent.NewClient(socket)
			issues, err := faults(ctx, client)
			if err == nil {
				err = announced(ctx, client)
			}
			if err == nil && len(issues) > 0 { // perhaps as peers had not announced pods yet
				issues, err = faults(ctx, client)
			}
			if err != nil {
				return nil, err
			}
			status, err := client.Status(ctx)
			for _, a := range status.Accelerators {
				if a.Off != "" {
					issues = append(issues, "accelerator "+a.Name+" is off: "+a.Off)
				}
			}
			return issues, err
		},
		Knows: knowsPod,
	}
}

// flags say what is alike on all nodes.
func flags(c lab.AgentConfig) []string {
	all := []string{"--cluster-cidr=" + model.Join(c.ClusterCIDRs, ","), "--service-cidr=" + model.Join(c.ServiceCIDRs, ",")}
	switch plan.Fabric(c.Fabric) {
	case "":
	case plan.BGP:
		all = append(all, "--fabric="+string(plan.Native), "--bgp")
	default:
		all = append(all, "--fabric="+c.Fabric)
	}
	return append(all, c.Flags...)
}

// faults waits until everything is programmed, and returns the objects that are at fault.
func faults(ctx context.Context, client *agent.Client) (issues []string, err error) {
	err = client.Sync(ctx)
	fault, ok := errors.AsType[*agent.FaultError](err)
	if !ok {
		return nil, err
	}
	for _, i := range fault.Issues {
		issues = append(issues, i.Object.String()+": "+i.Reason)
	}
	return issues, nil
}

// announced fails until BGP peers have announced all other nodes' pods. That may be later than what
// Sync waits for: peers tell what they know, and other nodes' agents may be still to come.
func announced(ctx context.Context, client *agent.Client) error {
	if _, err := client.BGP(ctx); err != nil {
		return nil // it speaks none
	}
	report, err := client.Fabric(ctx)
	if err != nil {
		return err
	}
	for _, b := range report.Blocks {
		if b.Mode == "" {
			return fmt.Errorf("no BGP peer announces the pods of %s, %s", b.Node, b.CIDR)
		}
	}
	return nil
}

// knowsPod asks an agent about a connection that a pod of its node could make. The pod counts as
// known unless the connection is dropped before any policy is evaluated.
func knowsPod(ctx context.Context, socket string, pod *corev1.Pod) (bool, error) {
	q, err := question.Parse(pod.Namespace+"/"+pod.Name, "node/"+pod.Spec.NodeName+":1")
	if err != nil {
		return false, err
	}
	e, err := agent.NewClient(socket).Explain(ctx, q)
	if err != nil {
		return false, err
	}
	for _, c := range e.Connections {
		for _, path := range c.Paths {
			if slices.ContainsFunc(path.Steps, func(s verdict.Step) bool { return s.Stage == verdict.Source && !s.Allowed() }) {
				return false, nil
			}
		}
	}
	return len(e.Connections) > 0, nil
}
