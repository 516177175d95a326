package kubetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"sluice.dev/sluice/internal/lab"
	"sluice.dev/sluice/internal/lab/control"
	"sluice.dev/sluice/internal/lab/plan"
	"sluice.dev/sluice/internal/lab/process"
	"sluice.dev/sluice/internal/lab/sluiceagent"
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

// programs builds sluice and sluice-lab for a test's lab, and returns their folder. In a guest
// (test/vm -kubernetes), which cannot build, they are beside the other programs.
func programs(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		built, err := exec.LookPath("sluice-lab")
		if err != nil {
			t.Fatalf("neither Go nor sluice-lab is in PATH: %v", err)
		}
		return filepath.Dir(built)
	}
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", dir, "sluice.dev/sluice/cmd/sluice", "sluice.dev/sluice/cmd/sluice-cni", "sluice.dev/sluice/cmd/sluice-lab").CombinedOutput(); err != nil {
		t.Fatalf("build the programs: %v\n%s", err, out)
	}
	return dir
}

// start brings up a lab with a data plane, from the programs in a folder, with further flags of
// Sluice's agents. The lab ends with the test.
func start(t *testing.T, programs string, d Dataplane, agentFlags ...string) *labCluster {
	t.Helper()
	bin, err := control.Build(t.Context(), func(s string) { t.Log(s) })
	if err != nil {
		t.Fatal(err)
	}
	k := &lab.Kubernetes{Bin: bin}
	cfg := lab.Config{
		Name: fmt.Sprintf("kubetest%d", os.Getpid()), Nodes: len(nodes), Objects: &plan.Objects{}, Kubernetes: k,
		Executable: filepath.Join(programs, "sluice-lab"), Sluice: filepath.Join(programs, "sluice"), Transient: true,
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
	t.Cleanup(func() {
		if err := lab.Down(l.Name); err != nil {
			t.Error(err)
		}
	})
	config, err := clientcmd.BuildConfigFromFlags("", l.HostKubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	return &labCluster{l, config}
}
