package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/demo"
	"sluice.dev/sluice/test/lab/probe"
)

// demoOptions are the flags of all demos.
type demoOptions struct {
	labOptions
	picture string
}

// register adds the flags that all demos have. name is the name of the lab unless another is given.
func (o *demoOptions) register(cmd *cobra.Command, name string) {
	o.transient = true
	labNameFlag(cmd, &o.name, name)
	sluiceFlag(cmd, &o.sluice)
}

func newLabDemoCommand() *cobra.Command {
	var (
		o       demoOptions
		tour    demo.Tour
		verbose bool
	)
	cmd := &cobra.Command{
		Use:   "demo [FILE|DIR]...",
		Short: "Start a lab, show what Sluice does in it, and take it down",
		Long: `Start a lab that runs the manifests (or a built-in example shop), show what Sluice
does in it, and take it down again, even after a failure or Ctrl-C: where a request
goes, who may reach whom, what a denied request meets, what a label changes, and what
becomes of requests while the agents are killed. At last it sends traffic through all
services. The exit status is 1 if anything is not as it should be.

  sluice lab demo              # the built-in shop
  sluice lab demo app.yaml     # your own manifests
  sluice lab demo examples/balancer  # farms.json in place of manifests: 'sluice balance'
  sluice lab demo policy       # who may reach whom, from no policy to an allow rule
  sluice lab demo takeover     # from a real kube-proxy to Sluice and back, under load
  sluice lab demo migrate      # a whole cluster, with MetalLB, to Sluice and back, under load`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if tour.Requests < 1 {
				return cli.Usage(errors.New("--requests must be at least 1"))
			}
			if farms, ok := farmsOf(args); ok {
				return o.runBalancer(cmd, farms)
			}
			return o.run(cmd, args, func(ctx context.Context, t *demo.Teller, l *lab.Lab, took time.Duration) error {
				tour.Took, tour.Next = took, tourNext(l, args)
				if verbose {
					tour.Tables = func(r *probe.Report) error { return tables(ctx, cmd.OutOrStdout(), l, r) }
				}
				return tour.Tell(ctx, t, l)
			})
		},
	}
	o.transient = true
	o.labOptions.register(cmd, "demo")
	fl := cmd.Flags()
	fl.IntVar(&tour.Requests, "requests", 5, "requests from each source through each address")
	fl.BoolVar(&tour.CheckOnly, "check", false, "only send traffic through all services, and sum up")
	fl.BoolVarP(&verbose, "verbose", "v", false, "also print the state of the lab, and where each request through each service went")
	fl.StringVar(&o.picture, "picture", "", "also draw what is printed, as an SVG `file`")
	_ = fl.MarkHidden("picture")
	cmd.AddCommand(newLabDemoPolicyCommand(), newLabDemoTakeoverCommand(), newLabDemoMigrateCommand())
	return cmd
}

func newLabDemoPolicyCommand() *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Show who may reach whom, from no policy to an allow rule",
		Long: `Start a lab with three tiers, and show who reaches whom without a policy, with one
that denies everything, and with one that allows one pair; what a denied request meets;
and how long each change took. Then take the lab down.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.runManifest(cmd, demo.Tiers, func(ctx context.Context, t *demo.Teller, l *lab.Lab, took time.Duration) error {
				run := typed(l.Sluice)
				return demo.Policy(ctx, t, l, took, []demo.Hint{
					{Type: run + " lab up examples/shop", For: "a cluster with policies, to look around in"},
					{Type: run + " lab exec node1 -- sluice policies", For: "what is in force there, with counters"},
					{Type: run + " lab exec node1 -- sluice drops", For: "what is dropped there, as it happens"},
					{Type: run + " lab probe", For: "who may reach whom, and all the rest"},
				})
			})
		},
	}
	o.nodes = 3
	o.register(cmd, "demopolicy")
	return cmd
}

func newLabDemoTakeoverCommand() *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "takeover",
		Short: "Take a node over from a real kube-proxy while requests go on, and give it back",
		Long: `Start a lab with a real control plane whose nodes the real kube-proxy serves, take
one of them over with 'sluice takeover' while requests go on, give it back, and take
the lab down. The first time, building Kubernetes' programs takes some minutes.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.runManifest(cmd, demo.Web, func(ctx context.Context, t *demo.Teller, l *lab.Lab, took time.Duration) error {
				withAgents, err := openLab(l.Name)
				if err != nil {
					return err
				}
				run := typed(l.Sluice)
				return demo.Takeover(ctx, t, withAgents, took, []demo.Hint{
					{Type: run + " lab up --kubernetes --kube-proxy nftables", For: "the same cluster, to do it yourself: see docs/takeover.md"},
					{Type: run + " bench kube-proxy", For: "both measured side by side: see docs/measured.md"},
				})
			})
		},
	}
	o.withKubernetes, o.kubeProxy, o.nodes = true, "nftables", 3
	o.register(cmd, "demotakeover")
	cmd.Flags().StringVar(&o.kubernetesBin, "kubernetes-bin", "", "`folder` with etcd, kube-apiserver, … and kubectl, instead of building them")
	return cmd
}

func newLabDemoMigrateCommand() *cobra.Command {
	var (
		o       demoOptions
		verbose bool
	)
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Move a whole cluster to Sluice while requests go on, and back",
		Long: `Start a lab with real nodes on which kube-proxy serves and MetalLB gives Services
addresses, both the real ones, and move it to Sluice as docs/install.md says: policies,
services, the pod network node by node, addresses. Requests go on, and after each step
it says how long that took, what became of them, and who carries out what now. Then it
moves all back, and takes the lab down. The first time, building what it runs takes
some minutes.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if os.Geteuid() != 0 {
				return errNotRoot
			}
			program, err := findSluice(o.sluice)
			if err != nil {
				return err
			}
			dir, err := os.MkdirTemp("", "sluice-demo-*")
			if err != nil {
				return fmt.Errorf("write what to move: %w", err)
			}
			defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
			m, err := demo.NewMigration(cmd.Context(), dir, program, func(step string) {
				_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "lab %s: %s\n", o.name, step)
			})
			if err != nil {
				return err
			}
			o.images, o.cni = m.Images, m.CNI
			return o.run(cmd, m.Manifests, func(ctx context.Context, t *demo.Teller, l *lab.Lab, took time.Duration) error {
				run := typed(l.Sluice)
				return demo.Migrate(ctx, t, l, took, m, verbose, []demo.Hint{
					{Type: run + " lab demo takeover", For: "kube-proxy alone, on one node"},
					{Type: run + " lab up --kubernetes --crds", For: "a cluster with Sluice, to look around in"},
				})
			})
		},
	}
	o.withKubernetes, o.noAgent, o.noBalancer, o.agent, o.crds, o.nodes = true, true, true, agentHelm, true, 2
	o.register(cmd, "demomigrate")
	cmd.Flags().StringVar(&o.kubernetesBin, "kubernetes-bin", "", "`folder` with etcd, kube-apiserver, … and kubectl, instead of building them")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "also print all that the commands print")
	return cmd
}

// runManifest is run for a manifest of ours.
func (o *demoOptions) runManifest(cmd *cobra.Command, manifest []byte, tell func(context.Context, *demo.Teller, *lab.Lab, time.Duration) error) error {
	dir, err := os.MkdirTemp("", "sluice-demo-*")
	if err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "demo.yaml")
	if err := os.WriteFile(file, manifest, 0o600); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	return o.run(cmd, []string{file}, tell)
}

// run brings up a lab, has its story told, and takes it down.
func (o *demoOptions) run(cmd *cobra.Command, paths []string, tell func(context.Context, *demo.Teller, *lab.Lab, time.Duration) error) (err error) {
	ctx := cmd.Context()
	t := newTeller(cmd.OutOrStdout())
	if o.picture != "" {
		frame := &demo.Picture{}
		t.Out, t.Colour, t.Columns = io.MultiWriter(t.Out, frame), true, 0
		defer func() {
			if err == nil {
				err = os.WriteFile(o.picture, frame.SVG("make run"), 0o644)
			}
		}()
	}
	o.warn(cmd.ErrOrStderr())
	const first = "cluster"
	progress := cmd.ErrOrStderr()
	if t.Columns > 0 {
		t.Begin(first)
		progress = t.Steps()
	}
	begin := time.Now()
	l, err := o.up(ctx, progress, paths)
	if err != nil {
		t.End()
		return err
	}
	defer func() { err = errors.Join(err, l.Down()) }()
	took := time.Since(begin)
	if t.Columns == 0 {
		t.Begin(first)
	}
	err = tell(ctx, t, l, took)
	t.End()
	return err
}

// farmsOf returns the file of the farms, if the paths name a folder with farms.json in place of
// manifests.
func farmsOf(paths []string) (file string, ok bool) {
	if len(paths) != 1 {
		return "", false
	}
	file = filepath.Join(paths[0], "farms.json")
	if _, err := os.Stat(file); err != nil {
		return "", false
	}
	manifests, _ := filepath.Glob(filepath.Join(paths[0], "*.y*ml")) // the pattern is well-formed
	return file, len(manifests) == 0
}

// runBalancer has the story of a balancer told, which has a small network of its own.
func (o *demoOptions) runBalancer(cmd *cobra.Command, farms string) error {
	if os.Geteuid() != 0 {
		return errNotRoot
	}
	program, err := findSluice(o.sluice)
	if err != nil {
		return err
	}
	t := newTeller(cmd.OutOrStdout())
	run := typed(program)
	err = demo.Balancer(cmd.Context(), t, demo.BalancerConfig{Name: o.name, Sluice: program, Farms: farms, Next: []demo.Hint{
		{Type: run + " balance --config " + farms, For: "the same on a machine that has its addresses"},
		{Type: run + " farms --watch", For: "what its servers get, live"},
		{Type: run + " bench balancer", For: "what it costs, beside others: see docs/measured.md"},
	}})
	t.End()
	return err
}

// newTeller tells a story on w: with colours and progress only on a terminal, and without colours
// if the user wants none.
func newTeller(w io.Writer) *demo.Teller {
	t := &demo.Teller{Out: w}
	f, ok := w.(*os.File)
	if !ok {
		return t
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err == nil && os.Getenv("TERM") != "dumb" {
		t.Columns, t.Colour = int(size.Col), os.Getenv("NO_COLOR") == ""
	}
	return t
}

// tables writes the state of the lab, and where the requests of a probe went.
func tables(ctx context.Context, w io.Writer, l *lab.Lab, r *probe.Report) error {
	for _, table := range []func(io.Writer){l.Status(ctx).Table, r.Table} {
		_, _ = fmt.Fprintln(w)
		if err := cli.Print(w, "table", nil, table); err != nil {
			return err
		}
	}
	return nil
}

// tourNext is what to type after the story of an application.
func tourNext(l *lab.Lab, paths []string) []demo.Hint {
	run, app := typed(l.Sluice), ""
	for _, p := range paths {
		app += " " + p
	}
	return []demo.Hint{
		{Type: run + " lab up" + app, For: "the same cluster, to look around in"},
		{Type: run + " lab demo policy", For: "from no policy to an allow rule"},
		{Type: run + " lab demo takeover", For: "from a real kube-proxy to Sluice and back, under load"},
		{Type: "make run APP=FOLDER", For: "the same with your own manifests; RUN=-v for details"},
	}
}

// typed returns what to type for a program: its path, if it is below the working directory.
func typed(program string) string {
	dir, err := os.Getwd()
	if err == nil {
		dir, err = filepath.Rel(dir, program)
	}
	if err != nil || strings.HasPrefix(dir, "..") {
		return filepath.Base(program)
	}
	return dir
}
