package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/pods/cni/install"
	"sluice.dev/sluice/internal/source/kube"
	"sluice.dev/sluice/internal/store"
)

func newCNICommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cni",
		Short: "Install or remove the CNI plugin, which attaches this node's pods",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() }, // so that Args is asked
	}
	cmd.AddCommand(newCNIInstallCommand(), newCNIRemoveCommand())
	return cmd
}

func newCNIInstallCommand() *cobra.Command {
	var (
		o     install.Options
		cidrs []netip.Prefix
	)
	cmd := &cobra.Command{
		Use:   "install --pod-cidr CIDRs",
		Short: "Write sluice-cni and a configuration where container runtimes look for them",
		Long: `Write sluice-cni and a configuration where container runtimes look for them. Both are replaced
at once, so it can be repeated while pods start. Of the reference plugins, portmap and bandwidth are
chained where they are installed. With --socket, pods wait until the agent has programmed their
policies and services. 'sluice run --cni' does the same with the node's pod CIDRs.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(cidrs) == 0 {
				return cli.Usage(errors.New("name the addresses of this node's pods with --pod-cidr, one CIDR of each family"))
			}
			o.PodCIDRs = cidrs
			written, err := install.Run(o)
			for _, path := range written {
				fmt.Fprintln(cmd.OutOrStdout(), "installed", path)
			}
			for _, path := range install.Before(o.ConfDir) {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: container runtimes take %s, which comes first by name: move it away\n", path)
			}
			return err
		},
	}
	cniFlags(cmd.Flags(), "", &o)
	cmd.Flags().Var((*prefixes)(&cidrs), "pod-cidr", "addresses of this node's pods, one CIDR of each family")
	cmd.Flags().StringVar(&o.Socket, "socket", "", "Unix socket of the agent that is to know of each pod before it talks (default: none)")
	return cmd
}

func newCNIRemoveCommand() *cobra.Command {
	var o install.Options
	cmd := &cobra.Command{
		Use:   "remove",
		Short: "Remove what 'sluice cni install' wrote",
		Long: `Remove what 'sluice cni install' wrote. Pods keep their network; install another plugin before
you start or stop any.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return install.Remove(o) },
	}
	cniFlags(cmd.Flags(), "", &o)
	return cmd
}

// cniFlags say what is installed where.
func cniFlags(fl *pflag.FlagSet, prefix string, o *install.Options) {
	beside := "sluice-cni"
	if self, err := os.Executable(); err == nil {
		beside = filepath.Join(filepath.Dir(self), beside)
	}
	fl.StringVar(&o.Binary, prefix+"plugin", beside, "`file` of sluice-cni")
	fl.StringVar(&o.BinDir, prefix+"bin-dir", install.BinDir, "`folder` where container runtimes look for plugins")
	fl.StringVar(&o.ConfDir, prefix+"conf-dir", install.ConfDir, "`folder` where container runtimes look for the configuration")
	fl.IntVar(&o.MTU, prefix+"mtu", 0, "MTU of pods (default: that of the way to other nodes)")
}

// cniOptions are the agent's.
type cniOptions struct {
	on bool
	install.Options
}

func (o *cniOptions) register(fl *pflag.FlagSet) {
	fl.BoolVar(&o.on, "cni", false, "attach this node's pods: install the CNI plugin once the node has pod CIDRs and the kernel is programmed, and tell a Kubernetes API that the network is available; needs the right to patch nodes/status there")
	cniFlags(fl, "cni-", &o.Options)
}

// The time between two looks at whether the plugin can be installed, and then at what is installed.
const (
	cniRetry = time.Second
	cniAudit = 30 * time.Second
)

// keepCNI installs the plugin as soon as the node can attach pods, and again when its pod CIDRs
// change or somebody removes a file. available is called the first time.
func keepCNI(ctx context.Context, a *agent.Agent, objects *store.Store, o install.Options, log *slog.Logger, available func()) {
	installed, failing := false, ""
	var before []string
	for files := newCNIFiles(); ; {
		written, err := installCNI(ctx, a, objects, &o, log, !installed)
		pause := cniRetry
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && (err.Error() == failing || !objects.Synced()): // what is not read yet is not known to be missing
		case err != nil:
			log.Warn("pods cannot be attached yet", "error", err)
			failing = err.Error()
		case err == nil:
			if failing, pause = "", cniAudit; !installed {
				installed = true
				go available()
			}
			now := install.Before(o.ConfDir)
			if len(now) > 0 && !slices.Equal(now, before) {
				log.Warn("container runtimes take another network's configuration, which comes first by name: move it away", "files", now)
			}
			before = now
		}
		if len(written) > 0 {
			files.wrote(&o, time.Now())
		}
		if files.Lost(time.Now()) {
			reason := fmt.Sprintf("another program goes on changing or removing the CNI plugin's files in %s and %s, which are put back within %v each time; end it", o.ConfDir, o.BinDir, cniAudit)
			a.Contests.Set(o.ConfDir, model.Ref{Kind: model.NodeKind, Name: model.Name{Name: a.Node}}.Issue(reason))
		} else {
			a.Contests.Clear(o.ConfDir)
		}
		if !wake.Sleep(ctx, pause) {
			return
		}
	}
}

// cniFiles tells whether somebody goes on undoing what is installed.
type cniFiles struct {
	contest.Pace
	config []byte // that was written last; nil: none was
}

func newCNIFiles() *cniFiles {
	return &cniFiles{Pace: contest.Pace{First: cniAudit, Most: cniAudit, Lasts: contest.Lasts}}
}

// wrote notes that files were written: the first time, as somebody had changed them, or as others
// are wanted than before, which is nobody's doing.
func (f *cniFiles) wrote(o *install.Options, now time.Time) {
	config, err := o.Config()
	if err == nil && (f.config == nil || bytes.Equal(config, f.config)) {
		f.Wrote(now)
	}
	f.config = config
}

// installCNI installs the plugin with the node's pod CIDRs; the first time, once the kernel has
// what pods need.
func installCNI(ctx context.Context, a *agent.Agent, objects *store.Store, o *install.Options, log *slog.Logger, first bool) (written []string, err error) {
	node := objects.Node(a.Node)
	if node == nil {
		return nil, a.MissingNode()
	}
	if len(node.PodCIDRs) == 0 {
		return nil, fmt.Errorf("no pod CIDRs are known of Node %s: see that the controller manager runs with --allocate-node-cidrs, and that 'sluice status' names none that is left out", a.Node)
	}
	if first {
		if err := a.Wait(ctx, objects.Generation()); err != nil {
			if _, objectsAlone := errors.AsType[*agent.FaultError](err); !objectsAlone {
				return nil, err
			}
		}
	}
	if other := install.Asks(o.ConfDir); other != "" && other != o.Socket && agent.Alive(other) {
		return nil, fmt.Errorf("the CNI plugin in %s is that of the agent on %s, which is at work, as in another network namespace: end it, or give this one folders of its own with --cni-conf-dir and --cni-bin-dir", o.ConfDir, other)
	}
	o.PodCIDRs = node.PodCIDRs
	written, err = install.Run(*o)
	for _, path := range written {
		log.Info("CNI plugin installed", "file", path)
	}
	return written, err
}

// runCNI has the agent install the CNI plugin, if it is to.
func (o *runOptions) runCNI(ctx context.Context, a *agent.Agent, objects *store.Store, log *slog.Logger) {
	if !o.cni.on {
		return
	}
	o.cni.Socket = a.Socket
	go keepCNI(ctx, a, objects, o.cni.Options, log, func() {
		if o.kubeFlags.named() {
			network := kube.NewNetworkAvailable(o.kubeFlags.api(false), a.Node, log)
			changeNode(ctx, network, a.Node, objects, a.Contests, func(n *model.Node) bool { return !n.Networked })
		}
	})
}
