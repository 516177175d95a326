package demo

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/load"
	"sluice.dev/sluice/test/lab/plan"
)

// Web is the application of Takeover's lab.
//
//go:embed web.yaml
var Web []byte

// takenOver is the node that is taken over. The client runs there.
const takenOver = "node1"

// These are the numbers of requests before the node is taken over, between that and its return, and
// after it.
const between = 500

// Takeover tells how a node of a lab is taken over from kube-proxy while requests go on, and given
// back. The lab runs Web, its nodes are served by kube-proxy, and it has been opened with agents.
// It is as it was when Takeover returns without an error.
func Takeover(ctx context.Context, t *Teller, l *lab.Lab, took time.Duration, next []Hint) error {
	s := &story{Teller: t, name: l.Name, lab: l}
	s.cluster(took)
	s.Say("the control plane and kube-proxy (%s) are Kubernetes' own", l.Kubernetes.Proxy)
	requests, err := load.Start(load.Config{Routes: webRoutes(l)})
	if err != nil {
		return err
	}
	defer requests.Stop()
	requests.More(between)
	s.step(ctx, "takeover", func(ctx context.Context) error { return s.takeOver(ctx, requests) })
	if len(s.failed) == 0 {
		s.step(ctx, "back", func(ctx context.Context) error { return s.giveBack(ctx, requests) })
	}
	s.step(ctx, "requests", func(context.Context) error {
		requests.More(between)
		sent, err := requests.Outcome()
		if err != nil {
			return err
		}
		s.Good("0 of %s failed, sent all the time: by a pod of %s to the service, and from outside to the node port of %s, "+
			"over IPv4 and IPv6. No open connection was cut.", thousands(sent), takenOver, takenOver)
		return nil
	})
	s.next(ctx, next)
	return s.end(ctx)
}

// webRoutes lists the ways to the service that lead through the node: from a pod to its cluster
// addresses, and from outside to its node port.
func webRoutes(l *lab.Lab) (routes []load.Route) {
	node := l.Cluster.Node(takenOver)
	for _, svc := range l.Cluster.Services {
		if svc.Name != "web" {
			continue
		}
		for _, a := range plan.ClusterIPs(svc) {
			routes = append(routes, load.Route{From: l.NodeNS("client.default"), To: netip.AddrPortFrom(a, uint16(svc.Spec.Ports[0].Port))})
		}
		for _, a := range node.IPs {
			routes = append(routes, load.Route{From: l.NodeNS(plan.Outside), To: netip.AddrPortFrom(a, uint16(svc.Spec.Ports[0].NodePort))})
		}
	}
	return routes
}

// waitForStop is how long `sluice takeover` waits for the other program to end, or to begin.
const waitForStop = "1m"

// takeOver starts the agent beside kube-proxy, and stops kube-proxy once `sluice takeover` asks for
// it.
func (s *story) takeOver(ctx context.Context, requests *load.Load) error {
	s.Progress("starting the agent of %s beside kube-proxy", takenOver)
	begin, before := time.Now(), requests.Sent()
	if err := s.lab.StartAgent(ctx, takenOver); err != nil {
		return err
	}
	s.Say("the agent of %s has programmed everything beside kube-proxy after %s", takenOver, span(time.Since(begin)))
	begin = time.Now()
	killed := false
	err := s.run(ctx, []string{"takeover", "--from", "kube-proxy", "--wait", waitForStop}, func(line string) error {
		if killed || !strings.HasPrefix(line, "wait ") {
			return nil
		}
		killed = true
		return s.lab.KillKubeProxy(takenOver)
	})
	if err != nil {
		return err
	}
	s.Good("%s is Sluice's after %s, and %s requests", takenOver, span(time.Since(begin)), thousands(requests.Sent()-before))
	requests.More(between)
	return nil
}

// giveBack starts kube-proxy beside the agent, stops that, and has `sluice takeover` remove what it
// programmed.
func (s *story) giveBack(ctx context.Context, requests *load.Load) error {
	s.Progress("starting kube-proxy of %s, and stopping the agent", takenOver)
	begin, before := time.Now(), requests.Sent()
	if err := errors.Join(s.lab.StartKubeProxy(takenOver), s.lab.KillAgent(takenOver)); err != nil {
		return err
	}
	s.Say("kube-proxy runs again, the agent of %s has stopped, and what it programmed serves on", takenOver)
	err := s.run(ctx, []string{"takeover", "--to", "kube-proxy", "--wait", waitForStop}, func(string) error { return nil })
	if err != nil {
		return err
	}
	s.Good("%s is kube-proxy's after %s, and %s requests", takenOver, span(time.Since(begin)), thousands(requests.Sent()-before))
	return nil
}

// run runs a command of sluice on the node, shows what it prints, and calls each with each line as
// it is printed.
func (s *story) run(ctx context.Context, args []string, each func(line string) error) error {
	s.Ran(append([]string{"sluice"}, args...)...)
	cmd := exec.CommandContext(ctx, s.lab.Sluice, append(args, "--node", takenOver)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("run sluice %s: %w", args[0], err)
	}
	cmd.Stderr = cmd.Stdout // the same pipe
	if err := s.lab.Start(takenOver, cmd); err != nil {
		return fmt.Errorf("run sluice %s: %w", args[0], err)
	}
	var errs []error
	for lines := bufio.NewScanner(out); lines.Scan(); {
		s.Quote(lines.Text())
		errs = append(errs, each(lines.Text()))
	}
	if err := cmd.Wait(); err != nil {
		errs = append(errs, fmt.Errorf("sluice %s: %w", strings.Join(args, " "), err))
	}
	return errors.Join(errs...)
}
