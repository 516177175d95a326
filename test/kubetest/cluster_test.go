package kubetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/process"
	"sluice.dev/sluice/test/lab/sluiceagent"
	"sluice.dev/sluice/test/machine"
	"sluice.dev/sluice/test/programs"
)

// labCluster is a lab with a real control plane.
type labCluster struct {
	*lab.Lab
	config *rest.Config
}

var _ Cluster = (*labCluster)(nil)

func (c *labCluster) Config() *rest.Config       { return c.config }
func (c *labCluster) HostNS(host string) string  { return c.NodeNS(host) }
func (c *labCluster) PodNS(p *corev1.Pod) string { return c.Lab.PodNS(p) }

func (c *labCluster) RestartProxy(_ context.Context, node string) error {
	return errors.Join(c.KillProxy(node), c.StartProxy(node))
}

func (c *labCluster) RestartAPI(ctx context.Context) error {
	return c.Plane(func(p *control.Plane) error { return p.Restart(ctx, control.APIServer) })
}

// logs returns the ends of the proxies' logs.
func (c *labCluster) logs() string {
	var text strings.Builder
	for _, n := range nodes {
		for _, name := range []string{"agent", "kube-proxy", "kubelet"} {
			if process.Find(filepath.Join(lab.Dir, c.Name, n), name) != (process.Process{}) {
				fmt.Fprintf(&text, "%s of %s:\n%s\n", name, n, process.Tail(filepath.Join(lab.Dir, c.Name, n), name))
			}
		}
	}
	return text.String()
}

// shared is the lab with Sluice's agents, which tests have one after the other.
var shared struct {
	cluster *labCluster
	world   *world
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.cluster != nil {
		if err := errors.Join(shared.world.close(), lab.Down(shared.cluster.Name)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// sluice returns the shared lab, in which all agents run with these flags.
func sluice(t *testing.T, flags ...string) (*labCluster, *world) {
	t.Helper()
	if shared.cluster == nil {
		machine.ControlPlane.Keep(t)
		shared.cluster = start(t, Sluice, flags...)
		shared.world = look(t, shared.cluster)
	}
	c := shared.cluster
	if slices.Equal(c.AgentFlags, flags) {
		return c, shared.world
	}
	c.AgentFlags = flags
	for _, n := range nodes {
		if err := c.RestartProxy(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	return c, shared.world
}

// look returns a cluster as the cases see it.
func look(t *testing.T, c Cluster) *world {
	t.Helper()
	w, err := newWorld(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// other brings up a lab with another data plane, until the test ends.
func other(t *testing.T, d Dataplane) (*labCluster, *world) {
	t.Helper()
	machine.ControlPlane.Take(t)
	c := start(t, d)
	t.Cleanup(func() {
		if err := lab.Down(c.Name); err != nil {
			t.Error(err)
		}
	})
	w := look(t, c)
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
	return c, w
}

// start brings up a lab with a data plane, with further flags of Sluice's agents. The caller takes
// it down.
func start(t *testing.T, d Dataplane, agentFlags ...string) *labCluster {
	t.Helper()
	bin, err := control.Build(t.Context(), func(s string) { t.Log(s) })
	if err != nil {
		t.Fatal(err)
	}
	k := &lab.Kubernetes{Bin: bin}
	name := strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(string(d)), "kube-proxy "), " ", "")
	cfg := lab.Config{
		Name: fmt.Sprintf("kt%d%s", os.Getpid(), name), Nodes: len(nodes), Objects: &plan.Objects{}, Kubernetes: k,
		Executable: programs.Path(t, "sluice-lab"), Sluice: programs.Path(t, "sluice"), Transient: true,
		Progress: func(s string) { t.Log(s) },
	}
	switch d {
	case Sluice:
		cfg.Agent, cfg.AgentFlags = sluiceagent.New(), agentFlags
	case NFTables:
		k.Proxy = "nftables"
	case IPTables:
		k.Proxy = "iptables"
	}
	l, err := lab.Up(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", l.HostKubeconfig())
	if err != nil {
		t.Fatal(errors.Join(err, lab.Down(l.Name)))
	}
	return &labCluster{l, config}
}
