package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/source/kube"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/kubelet"
)

func newLabKubeletCommand() *cobra.Command {
	var (
		cfg              kubelet.Config
		name, kubeconfig string
		ips, podCIDRs    []string
	)
	cmd := &cobra.Command{
		Use:    "kubelet",
		Short:  "Run the pods that an API server binds to one node",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			l := &lab.Lab{Name: name}
			cfg.NodeNS, cfg.NSPrefix = l.NodeNS(cfg.Node), l.NodeNS("")
			if cfg.IPs, err = parseAll(ips, netip.ParseAddr); err != nil {
				return cli.Usage(fmt.Errorf("--node-ip: %w", err))
			}
			if cfg.PodCIDRs, err = parseAll(podCIDRs, netip.ParsePrefix); err != nil {
				return cli.Usage(fmt.Errorf("--pod-cidr: %w", err))
			}
			if cfg.API, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
				return fmt.Errorf("read %s: %w", kubeconfig, err)
			}
			cfg.API.UserAgent = "sluice-lab-kubelet/" + cli.Version()
			cfg.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			kube.TakeLogs(cfg.Log)
			exe, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			// GNU wget tries twenty times, where BusyBox's gives up.
			wgetrc := filepath.Join(filepath.Dir(kubeconfig), "wgetrc")
			if err := os.WriteFile(wgetrc, []byte("tries = 1\n"), 0o644); err != nil {
				return fmt.Errorf("write settings for wget: %w", err)
			}
			cfg.Command = func(ctx context.Context, namespace, pod string, args []string) *exec.Cmd {
				cmd := exec.CommandContext(ctx, exe, append([]string{"lab", "exec", "--name", name, namespace + "/" + pod, "--"}, args...)...)
				cmd.Env = append(os.Environ(), "WGETRC="+wgetrc)
				return cmd
			}
			return kubelet.Run(cmd.Context(), cfg)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&name, "lab", "", "name of the lab")
	fl.StringVar(&cfg.Node, "node", "", "name of the node")
	fl.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig `file` of the API server")
	fl.StringSliceVar(&ips, "node-ip", nil, "the node's addresses, one of each family")
	fl.StringSliceVar(&podCIDRs, "pod-cidr", nil, "the node's pod CIDRs, one of each family (default: those of its Node object)")
	fl.StringVar(&cfg.Zone, "zone", "", "the node's zone")
	fl.StringVar(&cfg.Network.File, "cni-conf", "", "conflist `file` of the pods' network (default: one of sluice-cni with the pod CIDRs)")
	fl.StringSliceVar(&cfg.Network.Path, "cni-bin-dir", nil, "`folders` with CNI plugins")
	fl.StringVar(&cfg.Network.Dir, "cni-dir", "", "`folder` for what the node remembers of its pods' network")
	fl.StringVar(&cfg.Network.Agent, "cni-agent", "", "`socket` of the agent that is to know a pod before it sends (default: none)")
	fl.IntVar(&cfg.Network.MTU, "cni-mtu", 0, "MTU of pods (default: what the node's devices say)")
	for _, required := range []string{"lab", "node", "kubeconfig", "node-ip"} {
		_ = cmd.MarkFlagRequired(required)
	}
	return cmd
}

func parseAll[T any](words []string, parse func(string) (T, error)) ([]T, error) {
	var all []T
	for _, w := range words {
		v, err := parse(w)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}
