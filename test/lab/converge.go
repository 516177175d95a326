package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/test/lab/echo"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/process"
)

// converge brings the lab in line with its plan: first new pods, so that they answer when the
// agents learn of them, and last the removal of pods.
func (l *Lab) converge(ctx context.Context) error {
	gone, err := l.attachPods(ctx)
	if err != nil {
		return err
	}
	if err := l.serve(ctx); err != nil {
		return err
	}
	if err := l.writeObjects(); err != nil {
		return err
	}
	if err := l.writeHosts(); err != nil {
		return err
	}
	if err := l.routeOutside(); err != nil {
		return err
	}
	return gone()
}

// startServer starts the process that serves a node's pods.
func (l *Lab) startServer(n *plan.Node, exe string) error {
	return l.start(n.Name, "serve", []string{exe, "lab", "serve", "--socket", l.path(n.Name, "serve.sock")})
}

const serveTimeout = 20 * time.Second

// within is context.WithTimeout, with a cause for people.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("it was not ready within %v", d))
}

// serve gives each node's server its pods. Ports that cannot be served become warnings.
func (l *Lab) serve(ctx context.Context) error {
	ctx, cancel := within(ctx, serveTimeout)
	defer cancel()
	for _, n := range l.Cluster.Nodes {
		err := l.await(ctx, n.Name, "serve", func() (bool, error) {
			err := echo.Set(ctx, l.path(n.Name, "serve.sock"), l.served(n.Name))
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
				return false, err
			}
			if refused, ok := errors.AsType[*echo.SetError](err); ok {
				text := fmt.Sprintf("%s: %s", n.Name, refused)
				l.warn("%s", text)
				if !slices.Contains(l.Cluster.Notes, text) {
					l.Cluster.Notes = append(l.Cluster.Notes, text)
				}
				err = nil
			}
			return true, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// served lists a node's pods for its server.
func (l *Lab) served(node string) []echo.Pod {
	var pods []echo.Pod
	for _, p := range l.Cluster.Pods {
		if p.Spec.NodeName != node {
			continue
		}
		e := echo.Pod{Namespace: p.Namespace, Name: p.Name, Node: node, NetNS: l.PodNS(p), Addrs: plan.Addrs(p)}
		for _, port := range l.Cluster.Ports(p) {
			if port.Protocol != corev1.ProtocolSCTP { // the plan has a note about it
				e.Ports = append(e.Ports, echo.Port{Protocol: string(port.Protocol), Port: uint16(port.Port)})
			}
		}
		pods = append(pods, e)
	}
	return pods
}

// await polls until ready reports success, a process of the node dies, or ctx ends. The error
// contains the end of the process's log.
func (l *Lab) await(ctx context.Context, node, what string, ready func() (bool, error)) error {
	for {
		ok, err := ready()
		if ok {
			return err
		}
		installed := what == agentName && l.installed() // then the kubelet starts it, as often as it must
		if !installed && !l.process(node, what).Alive() {
			return fmt.Errorf("%s on %s died; the end of its log:\n%s", what, node, process.Tail(l.path(node), what))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s on %s: %w: %w; the end of its log:\n%s", what, node, context.Cause(ctx), err, process.Tail(l.path(node), what))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
