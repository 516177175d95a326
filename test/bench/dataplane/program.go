package dataplane

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/bench/peer"
)

// Program is a program that carries out services for a node, and how to run it.
type Program struct {
	Name string
	// Period is a little more than the least time between two of its rounds: a change that comes
	// after that is carried out at once.
	Period time.Duration
	// Proxy: it carries connections itself, so that it must run for them.
	Proxy bool
	// command returns the command that runs it, with its files in dir.
	command func(dir, kubeconfig string) (*exec.Cmd, error)
	// synced are parts of the lines that it logs once it has read its sources.
	synced []string
}

// Sluice is the agent without policy, as it replaces kube-proxy.
func Sluice(binary string) Program { return sluice(binary, "--policy=false") }

// SluiceMode is the agent without policy in one of its modes, and perhaps with one of the variants
// of iptables.
func SluiceMode(binary, mode, variant string) Program {
	p := sluice(binary, "--policy=false", "--mode", mode, "--iptables-variant", variant)
	p.Name, p.Proxy = strings.TrimSpace(p.Name+" "+mode+" "+variant), mode == "userspace"
	return p
}

// SluiceWithPolicy is the agent with policy.
func SluiceWithPolicy(binary string) Program { return sluice(binary) }

func sluice(binary string, flags ...string) Program {
	return Program{
		Name: peer.Sluice{}.Name(),
		command: func(dir, kubeconfig string) (*exec.Cmd, error) {
			return exec.Command(binary, append([]string{"run", "--kubeconfig", kubeconfig, "--node", cluster.Node, "--socket", socketIn(dir),
				"--cluster-cidr", inject.Sources.String(), "--service-cidr", cluster.Services.String()}, flags...)...), nil
		},
		synced: []string{"read the Kubernetes API"},
	}
}

func socketIn(dir string) string { return filepath.Join(dir, "agent.sock") }

// KubeNftables is the real kube-proxy in nftables mode; bin holds the program.
func KubeNftables(bin string) Program {
	return kubeProxy(bin, peer.KubeNftables{}.Name(), "nftables", nil)
}

// KubeIptables is the real kube-proxy in iptables mode, with iptables-legacy. With iptables-nft it
// takes minutes for many services.
func KubeIptables(bin string) Program {
	return kubeProxy(bin, peer.KubeIptables{}.Name(), "iptables", legacyTools)
}

// KubeIPVS is the real kube-proxy in IPVS mode, with iptables-legacy.
func KubeIPVS(bin string) Program { return kubeProxy(bin, "kube-proxy ipvs", "ipvs", legacyTools) }

// legacyTools makes a folder in which iptables is iptables-legacy.
func legacyTools(dir string) (string, error) {
	const legacy = "xtables-legacy-multi"
	path, err := exec.LookPath(legacy)
	if err != nil {
		return "", fmt.Errorf("%w: %s (apt-get install iptables)", peer.ErrMissing, legacy)
	}
	tools := filepath.Join(dir, "iptables")
	if err := os.MkdirAll(tools, 0o755); err != nil {
		return "", err
	}
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		if err := os.Symlink(path, filepath.Join(tools, name)); err != nil && !os.IsExist(err) {
			return "", err
		}
	}
	return tools, nil
}

// kubeProxy is kube-proxy with its defaults, such as at least a second between two rounds. Only the
// sysctls for connection tracking are left alone, as they are the whole machine's. Tools makes a
// folder that comes first in its PATH.
func kubeProxy(bin, name, mode string, tools func(dir string) (string, error)) Program {
	return Program{
		Name:   name,
		Period: 1200 * time.Millisecond, // minSyncPeriod is a second
		command: func(dir, kubeconfig string) (*exec.Cmd, error) {
			cmd := exec.Command(filepath.Join(bin, "kube-proxy"), "--kubeconfig", kubeconfig, "--proxy-mode", mode,
				"--hostname-override", cluster.Node, "--cluster-cidr", inject.Sources.String(),
				"--conntrack-max-per-core=0", "--conntrack-min=0")
			cmd.Env = os.Environ()
			if tools != nil {
				folder, err := tools(dir)
				if err != nil {
					return nil, fmt.Errorf("prepare %s: %w", name, err)
				}
				cmd.Env = append(cmd.Env, "PATH="+folder+":"+os.Getenv("PATH"))
			}
			return cmd, nil
		},
		synced: []string{
			`"Caches are synced" controller="service config"`, `"Caches are synced" controller="endpoint slice config"`,
		},
	}
}
