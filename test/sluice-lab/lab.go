package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/examples"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/preflight"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/echo"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/sluiceagent"
)

func newLabCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Run a cluster in network namespaces on this machine: start it, inspect it, send traffic through it",
		Long: `Run a cluster in network namespaces on this machine, with the manifests of an
application: each replica is a pod with its own address and a small server on its
containers' ports, and each node has an agent, which also enforces the manifests'
network policies. Nothing is added to the machine's own network. This needs root.

  sluice lab up app.yaml
  sluice lab probe
  sluice lab exec frontend -- curl -s http://cartservice:7070
  sluice lab exec node1 -- nft list table inet sluice
  sluice lab exec node1 -- sluice status
  sluice lab down`,
		Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newLabUpCommand(), newLabListCommand(), newLabStatusCommand(), newLabExecCommand(), newLabProbeCommand(),
		newLabDownCommand(), newLabDemoCommand(), newLabServeCommand(), newLabNodeCommand(), newLabAnswerCommand(), newLabImagesCommand(), newLabLoadCommand(), newLabE2ECommand(), newLabBuildCommand(), newLabKubectlCommand(), newLabRestartCommand(), newLabStopCommand(), newLabRelayCommand(), newLabContainerCommand(), newLabBalancerCommand())
	return cmd
}

// defaultLab is the name of the lab unless another is given.
const defaultLab = "default"

// labOptions are the flags that shape a lab.
type labOptions struct {
	name    string
	nodes   int
	noAgent bool
	sluice  string
	cni     string   // conflist of the pods' network
	fabric  string   // mode of the pod network between nodes
	flags   []string // further ones of the agents

	withKubernetes bool
	kubernetesBin  string
	kubeProxy      string
	agent          string // with Kubernetes: how the agents run
	agentImage     string
	images         []string
	containerd     string // folder of the nodes' containerd

	noBalancer bool // the lab gives Services no addresses

	empty     bool // run no application
	crds      bool // have the API serve ClusterNetworkPolicy, and the kinds of Calico and MetalLB
	transient bool // the lab must not outlive this process
	tested    bool // the cluster is to be as Kubernetes' own tests look for it
}

func (o *labOptions) register(cmd *cobra.Command, name string) {
	labNameFlag(cmd, &o.name, name)
	cmd.Flags().IntVar(&o.nodes, "nodes", 3, "number of nodes")
	cmd.Flags().BoolVar(&o.noAgent, "no-agent", false, "start no agents on the nodes, to run another program there")
	sluiceFlag(cmd, &o.sluice)
	fl := cmd.Flags()
	fl.StringVar(&o.fabric, "fabric", "", "have the agents reach other nodes' pods in this `mode`, instead of routes that the lab sets: "+model.Join(plan.Fabrics, ", ")+"; bgp and cross-subnet have a router between two subnets")
	_ = cmd.RegisterFlagCompletionFunc("fabric", cobra.FixedCompletions(strings.Split(model.Join(plan.Fabrics, ","), ","), cobra.ShellCompDirectiveNoFileComp))
	fl.StringArrayVar(&o.flags, "agent-flag", nil, "a further `flag` of the agents, such as --agent-flag=--mode=iptables; may be given several times")
	fl.StringVar(&o.cni, "cni", "", "give pods their network by this CNI configuration, a conflist `file`, instead of sluice-cni alone")
	fl.BoolVar(&o.withKubernetes, "kubernetes", false, "run a real control plane, and nodes with the real kubelet and containerd; the first time, building takes minutes")
	fl.StringVar(&o.kubernetesBin, "kubernetes-bin", "", "`folder` with etcd, kube-apiserver, … and kubectl, instead of building them")
	fl.StringVar(&o.agent, "agent", agentKustomize, "with --kubernetes: how the agents `run`: kustomize or helm install them in the cluster as users do; process: beside each node")
	fl.StringVar(&o.agentImage, "agent-image", "", "with --kubernetes: `archive` with the agents' image, as from 'make image', instead of one that is made of the programs here")
	fl.StringSliceVar(&o.images, "images", nil, "with --kubernetes: further `archives` of images, by docker save or in OCI's format; see also 'sluice lab load'")
	fl.StringVar(&o.containerd, "containerd", "", "with --kubernetes: `folder` with containerd, its shim and ctr, as from 'sluice lab build --containerd' (default: those in PATH)")
	fl.StringVar(&o.kubeProxy, "kube-proxy", "", "with --kubernetes: run the real kube-proxy in this `mode` on the nodes instead of the agent: nftables or iptables")
}

// How agents run with Kubernetes.
const agentKustomize, agentHelm, agentProcess = "kustomize", "helm", "process"

func labNameFlag(cmd *cobra.Command, name *string, value string) {
	cmd.Flags().StringVar(name, "name", value, "name of the lab: lower-case letters and digits")
	_ = cmd.RegisterFlagCompletionFunc("name", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		names, err := lab.List()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	})
}

// up brings up a lab of the manifests in the paths, or of the built-in example.
func (o *labOptions) up(ctx context.Context, w io.Writer, paths []string) (*lab.Lab, error) {
	if os.Geteuid() != 0 {
		return nil, errNotRoot
	}
	switch {
	case o.crds && !o.withKubernetes:
		return nil, cli.Usage(errors.New("--crds needs --kubernetes: without an API server, manifests of all kinds of policies are read as they are"))
	case o.kubeProxy != "" && !o.withKubernetes:
		return nil, cli.Usage(errors.New("--kube-proxy needs --kubernetes: it reads the API"))
	case o.kubeProxy != "" && o.noAgent:
		return nil, cli.Usage(errors.New("--kube-proxy and --no-agent exclude each other"))
	case o.fabric != "" && !slices.Contains(plan.Fabrics, plan.Fabric(o.fabric)):
		return nil, cli.Usage(fmt.Errorf("--fabric %s: choose one of %s", o.fabric, model.Join(plan.Fabrics, ", ")))
	case o.fabric == string(plan.BGP) && o.withKubernetes && !o.crds:
		return nil, cli.Usage(errors.New("--fabric bgp with --kubernetes needs --crds: the agents learn of their peer from the API"))
	case o.fabric != "" && (o.noAgent || o.kubeProxy != ""):
		return nil, cli.Usage(errors.New("--fabric is what the agents do: leave out --no-agent and --kube-proxy"))
	case !slices.Contains([]string{"", agentKustomize, agentHelm, agentProcess}, o.agent):
		return nil, cli.Usage(fmt.Errorf("--agent %s: choose %s, %s or %s", o.agent, agentKustomize, agentHelm, agentProcess))
	case len(o.flags) > 0 && (o.noAgent || o.kubeProxy != ""):
		return nil, cli.Usage(errors.New("--agent-flag is for the agents: leave out --no-agent and --kube-proxy"))
	case o.withKubernetes && o.agent != agentProcess && slices.ContainsFunc(o.flags, func(f string) bool { return strings.HasPrefix(f, "--mode=") && f != "--mode=nftables" }):
		return nil, cli.Usage(fmt.Errorf("--agent-flag=--mode needs --agent %s: the agents' pods have not the programs and rights of all modes", agentProcess))
	case !slices.Contains([]string{"", "nftables", "iptables"}, o.kubeProxy):
		return nil, cli.Usage(fmt.Errorf("--kube-proxy %s: choose nftables or iptables", o.kubeProxy))
	case o.empty && len(paths) > 0:
		return nil, cli.Usage(fmt.Errorf("--empty starts a lab without an application: leave out either --empty or %s", strings.Join(paths, " ")))
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	objects, err := o.objects(paths)
	if err != nil {
		return nil, err
	}
	for flag, path := range map[string]*string{"--cni": &o.cni, "--containerd": &o.containerd} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
	}
	cfg := lab.Config{Name: o.name, Nodes: o.nodes, Objects: objects, Executable: exe, CNI: o.cni, Fabric: plan.Fabric(o.fabric), AgentFlags: o.flags, Transient: o.transient, Progress: func(step string) {
		_, _ = fmt.Fprintf(w, "lab %s: %s\n", o.name, step)
	}}
	cfg.Sluice, err = findSluice(o.sluice)
	if !o.noAgent && o.kubeProxy == "" {
		if err != nil {
			return nil, err
		}
		cfg.Agent = sluiceagent.New()
	}
	if !o.withKubernetes {
		return lab.Up(ctx, cfg)
	}
	k, done, err := o.kubernetes(ctx, w, paths)
	if err != nil {
		return nil, err
	}
	cfg.Kubernetes = k
	l, err := lab.Up(ctx, cfg)
	return l, errors.Join(err, done())
}

// warn says what the machine has too little of for the lab.
func (o *labOptions) warn(w io.Writer) {
	if text := crowded(o.nodes, preflight.ReadNeighbours()); text != "" {
		_, _ = fmt.Fprintf(w, "lab %s: warning: %s\n", o.name, text)
	}
	if !o.withKubernetes {
		return
	}
	used, most := watches()
	if text := fewWatches(o.nodes, used, most); text != "" {
		_, _ = fmt.Fprintf(w, "lab %s: warning: %s\n", o.name, text)
	}
}

// watches returns how many instances of inotify there are, and how many each user may have; 0, 0 if
// that cannot be read.
func watches() (used, most int) {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	if err == nil {
		most, err = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if err != nil {
		return 0, 0
	}
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is well-formed
	for _, file := range files {
		if to, err := os.Readlink(file); err == nil && to == "anon_inode:inotify" {
			used++
		}
	}
	return used, most
}

// fewWatches says that the nodes of a lab may need more instances of inotify than there are; "":
// they do not.
func fewWatches(nodes, used, most int) string {
	const each = 12 // of a node: its kubelet, containerd, CoreDNS and agent
	if most == 0 || used+each*nodes <= most {
		return ""
	}
	return fmt.Sprintf("%d nodes need up to %d instances of inotify, and %d of %d are in use: containerd may not start; sysctl -w fs.inotify.max_user_instances=%d", nodes, each*nodes, used, most, 2*(used+each*nodes))
}

// crowded says that a lab has more nodes than the machine's kernel has room for in its tables of
// neighbours; "": it has not. Each node knows each other one, and what is outside.
func crowded(nodes int, tables []preflight.Neighbours) string {
	need := nodes * (nodes + 1)
	for _, t := range tables {
		if need > t.Most {
			return fmt.Sprintf("%d nodes know up to %d neighbours together, and the kernel has room for %d, of all network namespaces: packets between nodes may be lost; sysctl -w %s=%d", nodes, need, t.Most, t.Sysctl(), 4*need)
		}
	}
	return ""
}

// objects reads the objects of a lab's application.
func (o *labOptions) objects(paths []string) (*plan.Objects, error) {
	switch {
	case o.empty:
		return &plan.Objects{}, nil
	case len(paths) == 0:
		return plan.ReadFS(examples.Shop())
	}
	return plan.Read(paths...)
}

var errNotRoot = errors.New("a lab consists of network namespaces, which only root may make and enter: run this as root")

// openLab opens a lab whose agents are sluice.
func openLab(name string) (*lab.Lab, error) {
	if os.Geteuid() != 0 {
		return nil, errNotRoot
	}
	return lab.Open(name, sluiceagent.New())
}

// printNotes prints what does not work in a lab as its manifests say.
func printNotes(cmd *cobra.Command, l *lab.Lab) {
	for _, warning := range l.Warnings {
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "lab %s: note: %s\n", l.Name, warning)
	}
}

func newLabUpCommand() *cobra.Command {
	var o labOptions
	cmd := &cobra.Command{
		Use:   "up [FILE|DIR]...",
		Short: "Start a lab that runs the manifests, or a built-in example",
		Long: `Start a lab that runs the manifests (YAML or JSON), or a built-in example shop.
It returns once all pods answer and all agents have programmed their node. A dead
lab of the same name is removed first.

With --kubernetes the lab has a real control plane: etcd, API server, scheduler and
controller manager. Each node runs the real kubelet and containerd, pods are
containers, and the agents are installed as a DaemonSet. In place of a container whose
image the lab does not have, a small server answers on the container's ports.

With --empty the lab runs no application: it has nodes, agents and, with --kubernetes,
an API, to which you then apply manifests of your own.`,
		Example: `  sluice lab up examples/shop
  sluice lab up --kubernetes --empty
  sluice lab kubectl apply -f app.yaml`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.warn(cmd.ErrOrStderr())
			l, err := o.up(cmd.Context(), cmd.ErrOrStderr(), args)
			if err != nil {
				return err
			}
			printNotes(cmd, l)
			_, _ = fmt.Fprintf(cmd.OutOrStdout(), "lab %s is up: %s, %s, %s, %s\n", l.Name, model.Count(len(l.Cluster.Nodes), "node"),
				model.Count(len(l.Cluster.Pods), "pod"), model.Count(len(l.Cluster.Services), "service"), policies(len(l.Cluster.Policies)))
			if l.Kubernetes != nil {
				_, _ = fmt.Fprintf(cmd.OutOrStdout(), "its API: sluice lab kubectl%s …, or any client with KUBECONFIG=%s\n", nameFlag(l.Name), l.HostKubeconfig())
			}
			if o.empty {
				_, _ = fmt.Fprintln(cmd.OutOrStdout(), whatNext(l))
			}
			return nil
		},
	}
	o.register(cmd, defaultLab)
	cmd.Flags().BoolVar(&o.empty, "empty", false, "run no application: only nodes, agents and, with --kubernetes, an API for manifests of your own")
	cmd.Flags().BoolVar(&o.crds, "crds", false, "with --kubernetes: have the API serve ClusterNetworkPolicy, and all kinds of Calico and MetalLB that Sluice reads")
	return cmd
}

// whatNext says how manifests come into an empty lab.
func whatNext(l *lab.Lab) string {
	if l.Kubernetes == nil {
		return "it runs no application, and takes none later: it has no API; 'sluice lab up --kubernetes --empty' starts a lab that has"
	}
	return fmt.Sprintf("it runs no application; for example: sluice lab kubectl%s apply -f app.yaml", nameFlag(l.Name))
}

// nameFlag returns the flag that commands need to find the lab.
func nameFlag(name string) string {
	if name == defaultLab {
		return ""
	}
	return " --name " + name
}

func policies(n int) string {
	if n == 1 {
		return "1 policy"
	}
	return fmt.Sprintf("%d policies", n)
}

func newLabStatusCommand() *cobra.Command {
	var name, format string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show a lab's nodes, agents, pods, services and policies",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := openLab(name)
			if err != nil {
				return err
			}
			s := l.Status(cmd.Context())
			if err := cli.Print(cmd.OutOrStdout(), format, s, s.Table); err != nil {
				return err
			}
			if !s.Up {
				if l.Kubernetes != nil {
					return fmt.Errorf("lab %s is incomplete: not all of its processes run; the notes above say how to repair it", name)
				}
				return fmt.Errorf("lab %s is dead: not all of its processes run; 'sluice lab up' replaces it, 'sluice lab down' removes it", name)
			}
			return nil
		},
	}
	labNameFlag(cmd, &name, defaultLab)
	cli.OutputFlag(cmd, &format)
	return cmd
}

func newLabListCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the labs on this machine",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return errNotRoot
			}
			labs, err := lab.Summaries(cmd.Context())
			if err != nil {
				return err
			}
			return cli.Print(cmd.OutOrStdout(), format, labs, labs.Table)
		},
	}
	cli.OutputFlag(cmd, &format)
	return cmd
}

func newLabExecCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "exec NODE|POD|outside [-- COMMAND [ARG]...]",
		Short: "Run a command, or a shell, on a node, in a pod or on the outside host",
		Long: `Run a command, or a shell, on a node, in a pod (NAME or NAMESPACE/NAME; the name
of a Deployment means its first pod) or on the host outside the cluster. Services'
names resolve: svc, svc.ns, svc.ns.svc and svc.ns.svc.cluster.local. On a node, the
commands of sluice ask that node's agent. The exit status is the command's.`,
		Example: `  sluice lab exec front-1 -- curl -s http://cart:7070
  sluice lab exec node1 -- sluice status`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			// Flags may follow the target, too; then -- is optional, for users of kubectl.
			if err := cmd.Flags().Parse(args[1:]); err != nil {
				return cli.Usage(fmt.Errorf("%w; a command that begins with - goes behind --", err))
			}
			if help, _ := cmd.Flags().GetBool("help"); help {
				return cmd.Help()
			}
			l, err := openLab(name)
			if err != nil {
				return err
			}
			command := cmd.Flags().Args()
			if len(command) == 0 {
				command = []string{shell()}
			}
			return l.Exec(args[0], command)
		},
	}
	cmd.Flags().SetInterspersed(false) // all that follows the first word of the command belongs to it
	labNameFlag(cmd, &name, defaultLab)
	cmd.ValidArgsFunction = completePlaces(func(l *lab.Lab) []string { return append(hosts(l, true), pods(l)...) }, cobra.ShellCompDirectiveDefault)
	return cmd
}

func shell() string {
	if s := os.Getenv("SHELL"); s != "" {
		return s
	}
	return "/bin/sh"
}

// probeOptions are the flags of a probe.
type probeOptions struct {
	requests int
	format   string
}

func (o *probeOptions) register(cmd *cobra.Command) {
	cmd.Flags().IntVar(&o.requests, "requests", 5, "requests from each source through each address")
	cli.OutputFlag(cmd, &o.format)
}

// run probes a lab and prints where requests went. A wrong outcome is an error.
func (o *probeOptions) run(cmd *cobra.Command, l *lab.Lab, services []string) error {
	if o.requests < 1 {
		return cli.Usage(errors.New("--requests must be at least 1"))
	}
	rep, err := l.Probe(cmd.Context(), o.requests, services)
	if err != nil {
		return err
	}
	if err := cli.Print(cmd.OutOrStdout(), o.format, rep, rep.Table); err != nil {
		return err
	}
	if o.format == "table" {
		_, _ = fmt.Fprintln(cmd.OutOrStdout(), rep.Summary())
	}
	if rep.Failed > 0 {
		return fmt.Errorf("probe lab %s: %d of %s had a wrong outcome", l.Name, rep.Failed, model.Count(rep.Requests, "request"))
	}
	return nil
}

func newLabProbeCommand() *cobra.Command {
	var (
		name string
		o    probeOptions
	)
	cmd := &cobra.Command{
		Use:   "probe [SERVICE]...",
		Short: "Send requests through every service from pods, nodes and outside, and show where they went",
		Long: `Send requests through every address of every service (or those named) from a pod
on each node, from each node and from outside, and show which pods answered and
whether they saw the client's own address. If there are policies, a pod of every
workload also sends to every service port, and a table shows who reaches what.
Services with ready endpoints should answer, those without should refuse at once, and
what policies deny should be dropped. The exit status is 1 if any outcome differs.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := openLab(name)
			if err != nil {
				return err
			}
			return o.run(cmd, l, args)
		},
	}
	labNameFlag(cmd, &name, defaultLab)
	o.register(cmd)
	cmd.ValidArgsFunction = completePlaces(services, cobra.ShellCompDirectiveNoFileComp)
	return cmd
}

func newLabDownCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Take a lab down, whatever its state, and leave nothing behind",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return errNotRoot
			}
			if err := lab.Down(name); err != nil {
				return err
			}
			_, _ = fmt.Fprintf(cmd.OutOrStdout(), "lab %s is down\n", name)
			return nil
		},
	}
	labNameFlag(cmd, &name, defaultLab)
	return cmd
}

func newLabServeCommand() *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:    "serve",
		Short:  "Serve the pods of one node, as commanded over a Unix socket",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return echo.Run(cmd.Context(), socket) },
	}
	cmd.Flags().StringVar(&socket, "socket", "", "Unix socket to listen on")
	_ = cmd.MarkFlagRequired("socket")
	return cmd
}
