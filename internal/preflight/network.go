package preflight

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/kernel/link"
)

// network is a program that connects pods, and may carry out policy or services, too.
type network struct {
	name    string
	process string   // as the kernel knows it, 15 letters at the most
	devices []string // how the names of its interfaces begin
	chains  []string // how the names of its chains begin
	tables  []string // of nftables
}

const kubeProxyProcess = "kube-proxy"

var (
	calico    = network{name: "Calico", process: "calico-node", devices: []string{"cali", "vxlan.calico"}, chains: []string{"cali-"}, tables: []string{"calico"}}
	calicoBPF = network{name: "Calico with eBPF", devices: []string{"bpfin.cali", "bpfout.cali"}}
	cilium    = network{name: "Cilium", process: "cilium-agent", devices: []string{"cilium_"}, chains: []string{"CILIUM_"}}
	router    = network{name: "kube-router", process: "kube-router", devices: []string{"kube-bridge"}, chains: []string{"KUBE-ROUTER-"}}
	watched   = []string{kubeProxyProcess, calico.process, cilium.process, router.process}
)

// seen names the signs that a network is in use here; "": there are none.
func (n network) seen(f *Facts) string {
	var signs []string
	if n.process != "" && slices.Contains(f.Processes, n.process) {
		signs = append(signs, "process "+n.process)
	}
	for _, device := range f.Devices {
		if hasPrefix(device, n.devices) {
			signs = append(signs, "interface "+device)
			break
		}
	}
	for _, c := range slices.Concat(f.Chains, f.Legacy.Chains) {
		if hasPrefix(c.Name, n.chains) || slices.Contains(n.tables, c.Table) {
			signs = append(signs, fmt.Sprintf("chain %s %s %s", c.Family, c.Table, c.Name))
			break
		}
	}
	if signs == nil {
		return ""
	}
	return n.name + " (" + strings.Join(signs, ", ") + ")"
}

func hasPrefix(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// podNetworks finds the programs that connect this node's pods and do part of our work, too.
func podNetworks(f *Facts) []Result {
	const name = "pod network"
	var results []Result
	add := func(n network, s Status, what, do string) {
		if seen := n.seen(f); seen != "" {
			results = append(results, Result{name, s, seen + what, do})
		}
	}
	add(calicoBPF, Warn, ": its programs translate connections to services before nftables sees them",
		"leave services to it, or turn its eBPF dataplane off (bpfEnabled: false in FelixConfiguration)")
	if f.PolicyAsked {
		add(calico, Warn, ": it carries out policy as well, and a packet has to be allowed by both", "leave policy to it: sluice run --policy=false")
		add(cilium, Warn, ": its programs see packets of pods before nftables does, if nftables does at all, and it carries out policy as well",
			"leave policy to it: sluice run --policy=false; services work where it does not replace kube-proxy (kubeProxyReplacement=false)")
		add(router, Warn, ": it may carry out services and policy as well",
			"run kube-router with --run-service-proxy=false --run-firewall=false, or leave policy to it: sluice run --policy=false")
	} else {
		add(calico, OK, ": it carries out policy", "")
		add(cilium, Warn, ": its programs see packets of pods before nftables does, if nftables does at all",
			"services work where Cilium does not replace kube-proxy (kubeProxyReplacement=false)")
		add(router, Warn, ": it may carry out services as well", "run kube-router with --run-service-proxy=false")
	}
	if len(results) == 0 {
		return one(name, OK, "none that carries out services or policy", "")
	}
	return results
}

// running returns which of the programs have a process in the calling thread's network namespace
// that is visible from this pid namespace.
func running(programs []string) (found []string) {
	dirs, _ := Processes() // what cannot be read is as good as not there
	for _, dir := range dirs {
		b, _ := os.ReadFile(dir + "/comm") // fails if it has ended
		if program := strings.TrimSpace(string(b)); slices.Contains(programs, program) {
			found = append(found, program)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// Processes returns the directories "/proc/PID" of the processes in the calling thread's network
// namespace that are in this pid namespace.
func Processes() ([]string, error) {
	here, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("read network namespace: %w", err)
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	elsewhere := func(dir string) bool { ns, err := os.Readlink(dir + "/ns/net"); return err != nil || ns != here }
	return slices.DeleteFunc(dirs, elsewhere), err
}

// devices names the interfaces; none can be read without netlink, which other checks tell of.
func devices() (names []string) {
	interfaces, err := link.Here.Interfaces()
	if err != nil {
		return nil
	}
	for _, i := range interfaces {
		names = append(names, i.Name)
	}
	return names
}
