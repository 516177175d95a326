package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"

	"sluice.dev/sluice/examples"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kube"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/balancer"
	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/demo"
	"sluice.dev/sluice/test/lab/image"
	"sluice.dev/sluice/test/lab/node"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/suite"
)

// kubernetes prepares a lab with a real control plane: its programs, and the first objects of its
// API. done removes temporary files.
func (o *labOptions) kubernetes(ctx context.Context, w io.Writer, paths []string) (k *lab.Kubernetes, done func() error, err error) {
	bin := o.kubernetesBin
	if bin != "" {
		if err := control.Check(bin); err != nil {
			return nil, nil, err
		}
	} else {
		if bin, err = control.Build(ctx, func(step string) { _, _ = fmt.Fprintf(w, "lab %s: %s\n", o.name, step) }); err != nil {
			return nil, nil, err
		}
	}
	k = &lab.Kubernetes{Bin: bin, Proxy: o.kubeProxy, Manifests: paths, Tested: o.tested, NoBalancer: o.noBalancer}
	if err := o.nodeImages(ctx, w, k); err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "sluice-lab-")
	if err != nil {
		return nil, nil, fmt.Errorf("write what to apply: %w", err)
	}
	done = func() error { return os.RemoveAll(dir) }
	if len(paths) == 0 && !o.empty {
		k.Manifests = []string{filepath.Join(dir, "shop")}
		err = os.CopyFS(k.Manifests[0], examples.Shop())
	}
	if err == nil && o.crds {
		k.CRDs = filepath.Join(dir, "crds")
		if err = os.Mkdir(k.CRDs, 0o755); err == nil {
			err = control.WriteCRDs(ctx, k.CRDs)
		}
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("write what to apply: %w", err), done())
	}
	return k, done, nil
}

// nodeImages builds the images of a lab's nodes, and finds the agents'.
func (o *labOptions) nodeImages(ctx context.Context, w io.Writer, k *lab.Kubernetes) (err error) {
	k.Load, k.Containerd = o.images, o.containerd
	if err := lab.CheckNodes(k.Containerd); err != nil {
		return err
	}
	say := func(step string) { _, _ = fmt.Fprintf(w, "lab %s: %s\n", o.name, step) }
	if k.Images, err = image.Build(ctx, say); err != nil {
		return err
	}
	if o.agent == agentHelm {
		if k.Helm, err = control.BuildHelm(ctx, say); err != nil {
			return err
		}
	}
	switch {
	case o.noAgent || o.kubeProxy != "" || o.agent == agentProcess:
	case o.agentImage == "":
		k.AgentImage = lab.AgentImage
	default:
		images, err := image.Open(o.agentImage)
		if err != nil {
			return fmt.Errorf("--agent-image: %w", err)
		}
		names := images.Names()
		if err := images.Close(); err != nil {
			return err
		}
		if len(names) != 1 {
			return fmt.Errorf("--agent-image: %s has %s; it has to have one, the agents'", o.agentImage, model.Count(len(names), "image"))
		}
		k.AgentImage, k.Load = names[0], append(k.Load, o.agentImage)
	}
	return nil
}

func newLabBuildCommand() *cobra.Command {
	var tools, containerd bool
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build what 'lab up --kubernetes' runs, once",
		Long: `Build what 'lab up --kubernetes' runs: etcd, the parts of Kubernetes, kubectl, at
the versions that test/kube/go.mod pins, with the Go toolchain; and container images,
of such programs and Debian's packages. That takes some minutes, once: it keeps them
in the user's cache folder, and prints the path of each. With --containerd it builds
containerd 2, which nodes then have by 'lab up --containerd FOLDER'. With --tools it
builds what tests and demos run: helm, promtool, Kubernetes' own tests and MetalLB,
and prints their folders.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			say := func(step string) { _, _ = fmt.Fprintln(cmd.ErrOrStderr(), step) }
			builds := []func(context.Context, func(string)) (string, error){control.Build, image.Build}
			if containerd {
				builds = append(builds, node.BuildContainerd)
			}
			if tools {
				builds = append(builds, suite.Sets[0].Build, demo.BuildMetalLB, control.BuildTools)
			}
			for _, build := range builds {
				path, err := build(cmd.Context(), say)
				if err != nil {
					return err
				}
				_, _ = fmt.Fprintln(cmd.OutOrStdout(), path)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&containerd, "containerd", false, "also build containerd 2, for nodes instead of that in PATH")
	cmd.Flags().BoolVar(&tools, "tools", false, "also build what only tests and demos run: helm, promtool, Kubernetes' own tests, and MetalLB")
	return cmd
}

func newLabKubectlCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl [--name LAB] [ARG]...",
		Short: "Run kubectl on a lab that has a control plane",
		Long: `Run kubectl as the administrator of a lab that was started with --kubernetes.
--name has to come first. Any other client works as well, with the kubeconfig that
'sluice lab up' names.`,
		DisableFlagParsing: true, // all that follows is for kubectl
		RunE: func(cmd *cobra.Command, args []string) error {
			name, args, help := kubectlArguments(args)
			if help {
				return cmd.Help()
			}
			l, err := openLab(name)
			if err != nil {
				return err
			}
			return l.Plane(func(p *control.Plane) error {
				path := filepath.Join(p.Bin, "kubectl")
				args := append([]string{"kubectl", "--kubeconfig", l.HostKubeconfig()}, args...)
				return fmt.Errorf("run %s: %w", path, unix.Exec(path, args, os.Environ()))
			})
		},
	}
}

// kubectlArguments separates our own flags, which come first, from those of kubectl.
func kubectlArguments(args []string) (name string, rest []string, help bool) {
	name = defaultLab
	for len(args) > 0 {
		switch value, given := strings.CutPrefix(args[0], "--name="); {
		case given:
			name, args = value, args[1:]
		case args[0] == "--name" && len(args) > 1:
			name, args = args[1], args[2:]
		case args[0] == "--help" || args[0] == "-h":
			return name, nil, true
		case args[0] == "--":
			return name, args[1:], false
		default:
			return name, args, false
		}
	}
	return name, args, false
}

func newLabRestartCommand() *cobra.Command {
	var (
		name      string
		agentOnly bool
	)
	cmd := &cobra.Command{
		Use:   "restart NODE|control|outside...",
		Short: "Switch a node off and on again, or restart its agent, or dead processes elsewhere",
		Long: `Switch a node off, as a power cut does, and on again with the disk that it had, or
restart the dead processes of the hosts control and outside, in a lab with a control
plane. With --agent-only, which any lab can do, only the node's agent ends, as in a
crash, and starts again: pods, kubelet and all traffic go on. That returns once the
agent is in sync.`,
		Example: `  sluice lab restart node2 --agent-only`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			exe, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			l, err := openLab(name)
			if err != nil {
				return err
			}
			restart, what := func(host string) error { return l.Restart(cmd.Context(), host, exe) }, "all of"
			if agentOnly {
				restart, what = func(node string) error { return l.RestartAgent(cmd.Context(), node) }, "the agent of"
			}
			for _, host := range args {
				if err := restart(host); err != nil {
					return err
				}
				_, _ = fmt.Fprintf(cmd.OutOrStdout(), "lab %s: %s %s runs again\n", l.Name, what, host)
			}
			printNotes(cmd, l)
			return nil
		},
	}
	labNameFlag(cmd, &name, defaultLab)
	cmd.ValidArgsFunction = completePlaces(func(l *lab.Lab) []string { return hosts(l, !agentOnly) }, cobra.ShellCompDirectiveNoFileComp)
	cmd.Flags().BoolVar(&agentOnly, "agent-only", false, "restart only the agents of the nodes, and wait until they are in sync")
	return cmd
}

func newLabStopCommand() *cobra.Command {
	var (
		name string
		wipe bool
	)
	cmd := &cobra.Command{
		Use:   "stop NODE...",
		Short: "Switch nodes off, as a power cut does",
		Long: `Switch nodes off, as a power cut does. 'sluice lab restart' switches them on again,
with the disk that they had. With --wipe that is gone: the node then begins as a new
machine. To replace a node:

  sluice lab kubectl drain node3 --ignore-daemonsets
  sluice lab stop node3 --wipe
  sluice lab kubectl delete node node3
  sluice lab restart node3`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, nodes []string) error {
			l, err := openLab(name)
			if err != nil {
				return err
			}
			for _, node := range nodes {
				if err := l.Stop(node, wipe); err != nil {
					return err
				}
				_, _ = fmt.Fprintf(cmd.OutOrStdout(), "lab %s: %s is off\n", l.Name, node)
			}
			return nil
		},
	}
	labNameFlag(cmd, &name, defaultLab)
	cmd.ValidArgsFunction = completePlaces(func(l *lab.Lab) []string { return hosts(l, false) }, cobra.ShellCompDirectiveNoFileComp)
	cmd.Flags().BoolVar(&wipe, "wipe", false, "also remove their disks")
	return cmd
}

func newLabBalancerCommand() *cobra.Command {
	var name, kubeconfig string
	cmd := &cobra.Command{
		Use:    "balancer",
		Short:  "Assign addresses to LoadBalancer services, and routes to the outside host",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := lab.Open(name, nil)
			if err != nil {
				return err
			}
			api, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				return fmt.Errorf("read %s: %w", kubeconfig, err)
			}
			api.UserAgent = "sluice-lab-balancer/" + cli.Version()
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			kube.TakeLogs(log)
			return balancer.Run(cmd.Context(), api, plan.BalancerCIDRs, l.RouteOutside, log)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&name, "lab", "", "name of the lab")
	fl.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig `file` of the API server")
	for _, required := range []string{"lab", "kubeconfig"} {
		_ = cmd.MarkFlagRequired(required)
	}
	return cmd
}

func newLabContainerCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:    "container COMMAND...",
		Short:  "Stand in for a container runtime, for MetalLB's tests",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := lab.Open(name, nil)
			if err != nil {
				return err
			}
			return l.ContainerRuntime(cmd.Context(), args, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&name, "lab", "", "name of the lab")
	_ = cmd.MarkFlagRequired("lab")
	return cmd
}

func newLabRelayCommand() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:    "relay",
		Short:  "Forward the connections of an open socket, descriptor 3, to an address",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return lab.Relay(cmd.Context(), os.NewFile(3, "socket"), to)
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "address to connect to")
	_ = cmd.MarkFlagRequired("to")
	return cmd
}
