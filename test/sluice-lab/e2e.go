package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/image"
	"sluice.dev/sluice/test/lab/node"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/suite"
	"sluice.dev/sluice/test/netns"
)

// e2eOptions are the flags of a run of somebody else's tests.
type e2eOptions struct {
	labOptions
	focus, skip string
	keep        string
	dataPlane   string
	procs       int
	out         string
}

func newLabE2ECommand() *cobra.Command {
	var o e2eOptions
	cmd := &cobra.Command{
		Use:   "e2e [SET]",
		Short: "Run the tests of others, unmodified, on a lab with Kubernetes",
		Long: `Bring up a lab with Kubernetes, run tests of others against it, unmodified, and take
it down again: Kubernetes' own end-to-end tests of networks, the conformance tests of
ClusterNetworkPolicy, or MetalLB's tests. The first time, building them takes some minutes. The sets are:

` + sets() + `
The table names each test that failed, and each that skipped itself, with the reason.`,
		Example: `  sluice lab e2e conformance
  sluice lab e2e sig-network --focus 'Services.*session affinity' --data-plane kube-proxy-nftables`,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: setNames(),
		RunE: func(cmd *cobra.Command, args []string) error {
			set := suite.Sets[0]
			if len(args) > 0 {
				var err error
				if set, err = findSet(args[0]); err != nil {
					return err
				}
			}
			return o.run(cmd, set)
		},
	}
	fl := cmd.Flags()
	labNameFlag(cmd, &o.name, "e2e")
	sluiceFlag(cmd, &o.sluice)
	fl.StringVar(&o.focus, "focus", "", "of the set's tests, only those whose title matches this `expression`")
	fl.StringVar(&o.skip, "skip", "", "leave out tests whose title matches this `expression`")
	fl.StringVar(&o.dataPlane, "data-plane", "sluice", "what serves the nodes: "+strings.Join(suite.DataPlaneNames(), ", "))
	fl.StringVar(&o.keep, "keep", "", "`folder` of a page to write with the result, and those that it has: docs/e2e")
	fl.IntVar(&o.nodes, "nodes", 0, "number of nodes (default: as many as the set needs)")
	fl.IntVar(&o.procs, "procs", 4, "number of Kubernetes' tests that run at the same time")
	fl.StringVar(&o.out, "out", "", "`folder` for the reports (JUnit, and the suite's own) and the tests' output (default: one below the user's cache folder)")
	fl.StringVar(&o.containerd, "containerd", "", "`folder` with the nodes' containerd, as from 'sluice lab build --containerd' (default: that in PATH)")
	fl.StringVar(&o.agentImage, "agent-image", "", "`archive` with the agents' image, as from 'make image', instead of one that is made of the programs here")
	fl.StringArrayVar(&o.flags, "agent-flag", nil, "a further `flag` of the agents, such as --agent-flag=--policy=false; may be given several times")
	return cmd
}

func sets() string {
	var b strings.Builder
	for _, s := range suite.Sets {
		fmt.Fprintf(&b, "  %-22s  %s\n", s.Name, s.About)
	}
	return b.String()
}

func setNames() (names []string) {
	for _, s := range suite.Sets {
		names = append(names, s.Name)
	}
	return names
}

func findSet(name string) (suite.Set, error) {
	for _, s := range suite.Sets {
		if s.Name == name {
			return s, nil
		}
	}
	return suite.Set{}, cli.Usage(fmt.Errorf("there is no set %s; choose one of %s", name, strings.Join(setNames(), ", ")))
}

func (o *e2eOptions) run(cmd *cobra.Command, set suite.Set) (err error) {
	if o.keep != "" && (o.focus != "" || o.skip != "" || len(o.flags) > 0 || o.agentImage != "") {
		return cli.Usage(errors.New("--keep keeps runs of a whole set with what everybody has: leave out --focus, --skip, --agent-flag and --agent-image"))
	}
	plane, err := suite.FindDataPlane(o.dataPlane)
	if err != nil {
		return cli.Usage(fmt.Errorf("--data-plane: %w", err))
	}
	if len(set.Flags) > 0 && plane.Name != suite.DataPlanes[0].Name {
		return cli.Usage(fmt.Errorf("the set %s is of what %s does alone: leave out --data-plane", set.Name, suite.DataPlanes[0].Name))
	}
	o.flags = append(set.Flags, o.flags...)
	o.withKubernetes, o.empty, o.transient, o.tested, o.crds = true, true, true, true, set.CRDs
	o.serveBy(plane)
	if o.nodes == 0 {
		o.nodes = set.Nodes
	}
	set.Nodes = o.nodes
	if o.focus != "" {
		set.Focus += ".*(" + o.focus + ")"
	}
	if o.skip != "" {
		set.Skip = strings.TrimPrefix(set.Skip+"|"+o.skip, "|")
	}
	w := cmd.ErrOrStderr()
	o.warn(w)
	say := func(step string) { _, _ = fmt.Fprintf(w, "lab %s: %s\n", o.name, step) }
	bin, err := set.Build(cmd.Context(), say)
	if err != nil {
		return err
	}
	if o.out, err = reportFolder(o.out, set.Name); err != nil {
		return err
	}
	l, err := o.up(cmd.Context(), w, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Down()) }()
	printNotes(cmd, l)
	images, err := image.Programs(cmd.Context(), say)
	if err == nil {
		err = l.Internet(cmd.Context(), images)
	}
	if err != nil {
		return err
	}
	say(fmt.Sprintf("running the tests of %s with %s on %s; what they print is in %s",
		set.Name, o.dataPlane, model.Count(o.nodes, "node"), filepath.Join(o.out, "output.log")))
	report, err := o.test(cmd.Context(), w, l, set, bin)
	if err != nil {
		return err
	}
	if err := describe(cmd.Context(), l, report); err != nil {
		return err
	}
	if o.keep != "" {
		if err := suite.Keep(o.keep, report); err != nil {
			return err
		}
	}
	return o.print(cmd.OutOrStdout(), report)
}

// serveBy has a data plane serve the nodes, as its users have it.
func (o *e2eOptions) serveBy(plane suite.DataPlane) {
	o.kubeProxy = plane.KubeProxy
	if plane.KubeProxy != "" {
		return
	}
	flags := append([]string{"--mode=" + plane.Mode}, plane.Flags...)
	if plane.Mode != "userspace" { // which has no pod network
		// Pods reach each other as they are, and all others with their node's address.
		o.fabric, flags = string(plan.Native), append(flags, "--nat-outgoing")
	}
	if plane.Mode != "nftables" { // they need programs of the machine, or may set more than a pod
		o.agent = agentProcess
	}
	o.flags = append(flags, o.flags...)
}

// describe adds to a report what it is of.
func describe(ctx context.Context, l *lab.Lab, report *suite.Report) (err error) {
	if report.Cgroups, err = node.CgroupVersion(); err != nil {
		return err
	}
	return l.Plane(func(p *control.Plane) error {
		var nodes corev1.NodeList
		if err := p.Get(ctx, "/api/v1/nodes", &nodes); err != nil {
			return err
		}
		report.Nodes = len(nodes.Items)
		for _, n := range nodes.Items {
			info := n.Status.NodeInfo
			kernel, _, _ := strings.Cut(info.KernelVersion, "-") // the rest says who built it
			runtime, _, _ := strings.Cut(info.ContainerRuntimeVersion, "+")
			report.Kubernetes, report.Runtime, report.Kernel = info.KubeletVersion, strings.ReplaceAll(runtime, "://", " "), kernel
		}
		return nil
	})
}

// test runs the set on a host outside of the cluster and of its nodes' network, as its clients are,
// or on the outside host.
func (o *e2eOptions) test(ctx context.Context, w io.Writer, l *lab.Lab, set suite.Set, bin string) (*suite.Report, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	open := l.Client
	if set.Near {
		open = func() (*netns.NS, error) { return netns.Open(l.NodeNS(plan.Outside)) }
	}
	client, err := open()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	c := suite.Config{Set: set, DataPlane: o.dataPlane, Bin: bin, NetNS: client, SSHKey: l.SSHKey(), Dir: o.out, Procs: o.procs,
		Runtime: []string{exe, "lab", "container", "--lab", l.Name, "--"}}
	begin, said := time.Now(), time.Now()
	c.Progress = func(n suite.Counts) {
		if time.Since(said) < 10*time.Second {
			return
		}
		said = time.Now()
		_, _ = fmt.Fprintf(w, "lab %s: %d passed, %d failed after %s\n", l.Name, n.Passed, n.Failed, time.Since(begin).Round(time.Second))
	}
	var report *suite.Report
	err = l.Plane(func(p *control.Plane) error {
		c.Kubeconfig, c.Kubectl = p.Admin(), filepath.Join(p.Bin, "kubectl")
		ctx, cancel := context.WithCancelCause(ctx)
		var pod sync.WaitGroup
		pod.Go(func() {
			if err := p.AsPod(ctx, node.Pause); err != nil {
				cancel(err)
			}
		})
		var err error
		report, err = suite.Run(ctx, c)
		cancel(nil)
		pod.Wait()
		return err
	})
	return report, err
}

func (o *e2eOptions) print(w io.Writer, report *suite.Report) error {
	if err := cli.Print(w, "table", report, report.Table); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(w, "%s\nreports: %s\n", report.Summary(), o.out)
	if n := len(report.Ours()); n > 0 {
		return fmt.Errorf("%s failed", model.Count(n, "test"))
	}
	if report.Count(suite.Passed) == 0 {
		return errors.New("no test has run")
	}
	return nil
}

// reportFolder makes the folder for the reports of a run.
func reportFolder(dir, set string) (string, error) {
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("make a folder for the reports: %w", err)
		}
		dir = filepath.Join(cache, "sluice", "e2e", set+"-"+time.Now().Format("20060102-150405"))
	}
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return "", fmt.Errorf("make a folder for the reports: %w", err)
	}
	return dir, nil
}
