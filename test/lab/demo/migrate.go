package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/load"
	"sluice.dev/sluice/test/lab/plan"
)

// migration is the story of a cluster that moves to Sluice and back.
type migration struct {
	*story
	*Migration
	verbose bool

	given map[string]string // the addresses that Services keep, by name
	who   *whoHas           // has that of web
	sent  int64
	again bool // what is typed was shown for another node
}

// Migrate tells how the cluster of a lab moves to Sluice as docs/install.md says, and back, while
// requests go on. The lab was brought up with what m says. With verbose, all that the commands
// print is shown.
func Migrate(ctx context.Context, t *Teller, l *lab.Lab, took time.Duration, m *Migration, verbose bool, next []Hint) error {
	s := &migration{story: &story{Teller: t, name: l.Name, lab: l}, Migration: m, verbose: verbose}
	s.cluster(took)
	s.Say("kubelet, containerd, kube-proxy and MetalLB are the real ones. Of Calico there are objects, and not its programs: " +
		"nobody enforces the policy, the CNI plugin ptp attaches pods, and routes lead to those of the other node.")
	steps := []struct {
		name string
		do   func(context.Context) error
		now  owners
	}{
		{"before", s.before, owners{"nobody", "kube-proxy", "ptp", "MetalLB"}},
		{"policies", s.policies, owners{"Sluice", "Sluice beside kube-proxy", "ptp", "MetalLB"}},
		{"services", s.services, owners{"Sluice", "Sluice", "ptp", "MetalLB"}},
		{"network", s.network, owners{"Sluice", "Sluice", "sluice-cni", "MetalLB"}},
		{"addresses", s.addresses, owners{"Sluice", "Sluice", "sluice-cni", "Sluice"}},
		{"back", s.addressesBack, owners{"Sluice", "Sluice", "sluice-cni", "MetalLB"}},
		{"back", s.networkBack, owners{"Sluice", "Sluice", "ptp", "MetalLB"}},
		{"back", s.servicesBack, owners{"nobody", "kube-proxy", "ptp", "MetalLB"}},
	}
	for _, step := range steps {
		if len(s.failed) == 0 {
			s.step(ctx, step.name, func(ctx context.Context) error {
				if err := step.do(ctx); err != nil {
					return err
				}
				return s.now(ctx, step.now)
			})
		}
	}
	if s.who != nil {
		if err := s.who.close(); err != nil {
			return err
		}
	}
	if len(s.failed) == 0 {
		s.step(ctx, "requests", func(context.Context) error {
			s.Good("0 of %s failed, sent all the time: from pods to the service, and from outside to node ports and to its address", thousands(s.sent))
			return nil
		})
	}
	s.next(ctx, next)
	return s.end(ctx)
}

// web is the Service that requests go to, and its ports: one that a policy denies is its pods'.
const (
	web               = "web"
	webPort, nodePort = 80, 30080
	deniedPort        = 8081
)

// kubectl runs kubectl as the lab's administrator, and returns what it prints.
func (s *migration) kubectl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.lab.Kubernetes.Bin, "kubectl"), append([]string{"--kubeconfig", s.lab.HostKubeconfig()}, args...)...)
	var out, notes bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &notes
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s%s", strings.Join(args, " "), err, out.String(), notes.String())
	}
	return out.String(), nil
}

// types types commands of kubectl and helm, as the page has them.
func (s *migration) types(ctx context.Context, lines ...string) error {
	for _, line := range lines {
		if _, err := s.typed(ctx, line); err != nil {
			return err
		}
	}
	return nil
}

// typed types one, and returns what it prints.
func (s *migration) typed(ctx context.Context, line string) (out string, err error) {
	if s.again {
		s.Progress("%s", line)
	} else {
		s.Ran(line)
	}
	words := strings.Fields(strings.ReplaceAll(line, "'", "")) // no word has a space
	files := map[string]string{"deploy/helm/sluice": s.chart, "metallb-native.yaml": s.metalLB, "l2.yaml": s.l2}
	for i, w := range words {
		if file := files[w]; file != "" {
			words[i] = file
		}
	}
	last := len(words) - 1
	file, kept := strings.CutPrefix(words[last], ">")
	switch {
	case words[0] == "helm":
		out, err = s.lab.Helm(ctx, words[1:]...)
	case kept:
		if out, err = s.kubectl(ctx, words[1:last]...); err == nil {
			err = os.WriteFile(files[file], []byte(out), 0o644)
		}
	default:
		out, err = s.kubectl(ctx, words[1:]...)
	}
	if s.verbose {
		s.Quote(strings.Split(strings.TrimSpace(out), "\n")...)
	}
	return out, err
}

// upgrade is an upgrade of Sluice to further values.
func upgrade(values ...string) string {
	return "helm upgrade sluice deploy/helm/sluice -n kube-system --reset-then-reuse-values --set " + strings.Join(values, " --set ")
}

// rollout is the wait for a rollout of Sluice.
const rollout = "kubectl -n kube-system rollout status daemonset/sluice"

// under does a part of a step while requests go on, of which none may fail: from a pod of a node
// and to the port of that node, and to the Service's address. With short, each has a connection of
// its own.
func (s *migration) under(ctx context.Context, node, what string, short bool, do func() error) error {
	routes, err := s.routes(ctx, node)
	if err != nil {
		return err
	}
	requests, err := load.Start(load.Config{Routes: routes, Every: 25 * time.Millisecond, Short: short})
	if err != nil {
		return err
	}
	defer requests.Stop()
	requests.More(50)
	begin := time.Now()
	if err := do(); err != nil {
		return err
	}
	took := time.Since(begin)
	requests.More(50)
	sent, err := requests.Outcome()
	if err != nil {
		return err
	}
	s.sent += sent
	s.Good("%s after %s; 0 of %s requests failed, and none took longer than %s", what, span(took), thousands(sent), span(requests.Silence()))
	return nil
}

// routes are from a pod of a node to the service's cluster address, and from outside to the node's
// port and to the service's own address.
func (s *migration) routes(ctx context.Context, node string) ([]load.Route, error) {
	s.lab.Status(ctx) // so that the pods' networks have their names
	pod := s.pod("client", node)
	svc := s.service(web)
	if pod == nil || svc == nil {
		return nil, fmt.Errorf("there is no client on %s, or no service", node)
	}
	outside := s.lab.NodeNS(plan.Outside)
	address, err := netip.ParseAddr(s.given[web])
	if err != nil {
		return nil, err
	}
	return []load.Route{
		{From: s.lab.PodNS(pod), To: netip.AddrPortFrom(plan.ClusterIPs(svc)[0], webPort)},
		{From: outside, To: netip.AddrPortFrom(s.lab.Cluster.Node(node).IPs[0], nodePort)},
		{From: outside, To: netip.AddrPortFrom(address, webPort)},
	}, nil
}

// pod is a running pod of a workload on a node; nil: there is none.
func (s *migration) pod(app, node string) *corev1.Pod {
	for _, p := range s.lab.Cluster.Pods {
		if p.Labels["app"] == app && p.Spec.NodeName == node && p.DeletionTimestamp == nil && plan.Ready(p) {
			return p
		}
	}
	return nil
}

func (s *migration) service(name string) *corev1.Service {
	for _, svc := range s.lab.Cluster.Services {
		if svc.Name == name && svc.Namespace == "default" {
			return svc
		}
	}
	return nil
}

func (s *migration) nodes() (names []string) {
	for _, n := range s.lab.Cluster.Nodes {
		names = append(names, n.Name)
	}
	return names
}

// waitTime bounds each wait for a state.
const waitTime = time.Minute

// until waits until is is true.
func (s *migration) until(ctx context.Context, what string, is func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, waitTime)
	defer cancel()
	s.Progress("waiting until %s", what)
	for {
		ok, err := is()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, errors.Join(ctx.Err(), err))
		case <-time.After(50 * time.Millisecond):
		}
	}
}
