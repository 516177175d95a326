package preflight

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/foreign"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/internal/kernel/xtables"
)

// healthy returns the facts of a node that lacks nothing.
func healthy() *Facts {
	return &Facts{
		Mode:           "nftables",
		Kernel:         "6.12.3-cloud-amd64",
		NetAdmin:       true,
		Features:       []Feature{{Requirement: &probe.Requirement{Name: "masquerade", Since: "5.2", Modules: []string{"nft_masq"}}}},
		Optional:       []Feature{{Requirement: &probe.Requirement{Name: "table owner", Since: "6.9", Without: "put back within a second"}}},
		PolicyFeatures: []Feature{{Requirement: &probe.Requirement{Name: "connection labels", Since: "4.8"}}},
		Families:       []Family{{Name: "IPv4", Target: "10.96.0.1", Route: "via 10.0.0.1 dev eth0", Forwards: true}},
		Conntrack:      Conntrack{Loaded: true, Count: 10, Max: 262144, Liberal: true},
		Socket:         "/run/sluice/sluice.sock",
	}
}

// nic adds an interface with features that are on (+) or off (-); "!": and cannot be changed.
func (f *Facts) nic(driver string, features ...string) {
	n := NIC{Device: "eth0", Driver: driver, Features: map[string]ethtool.FeatureState{}}
	for _, feature := range features {
		name, fixed := strings.CutSuffix(feature[1:], "!")
		n.Features[name] = ethtool.FeatureState{Available: !fixed, Active: feature[0] == '+'}
	}
	f.FabricVXLAN, f.NICs = true, []NIC{n}
}

// uplink adds such an interface, by which the default route leads.
func (f *Facts) uplink(features ...string) {
	f.nic("", features...)
	f.Uplinks, f.NICs = f.NICs, nil
}

// Datagrams that are joined already, or cannot be, are no matter.
func TestJoining(t *testing.T) {
	for _, features := range [][]string{
		{"-rx-gro", "-rx-udp-gro-forwarding"}, {"+rx-gro", "+rx-udp-gro-forwarding"}, {"+rx-gro", "-rx-udp-gro-forwarding", "+rx-gro-list"}, {"+rx-gro", "-rx-udp-gro-forwarding!"}, {"+rx-gro"},
	} {
		f := healthy()
		f.uplink(features...)
		if got := joining(f); got != nil {
			t.Errorf("%v: %+v", features, got)
		}
	}
	f := healthy()
	f.uplink("+rx-gro", "-rx-udp-gro-forwarding")
	f.Kernel = "6.1.0-30"
	if got := joining(f); got != nil {
		t.Errorf("an old kernel: %+v", got)
	}
}

func TestAHealthyNodePassesEveryCheck(t *testing.T) {
	results := Check(healthy())
	for _, r := range results {
		if r.Status != OK || r.Do != "" {
			t.Errorf("%+v", r)
		}
	}
	if len(results) < 14 {
		t.Errorf("%d results, want one of each check: %+v", len(results), results)
	}
}

// What the kernel lacks is told once, though it does not take the ruleset either then.
func TestMissingFeatureIsToldOnce(t *testing.T) {
	for name, change := range map[string]func(*Facts) error{
		"of services": func(f *Facts) error {
			f.Features[0].Err = f.Features[0].Missing(unix.EOPNOTSUPP)
			return f.Features[0].Err
		},
		"of policy": func(f *Facts) error {
			f.PolicyFeatures[0].Err = f.PolicyFeatures[0].Missing(unix.EINVAL)
			return f.PolicyFeatures[0].Err
		},
	} {
		f := healthy()
		f.DriverAsked, f.DriverErr = true, change(f)
		var failed []Result
		for _, r := range Check(f) {
			if r.Status == Fail {
				failed = append(failed, r)
			}
		}
		if len(failed) != 1 || failed[0].Seen != f.DriverErr.Error() {
			t.Errorf("%s: %+v", name, failed)
		}
	}
}

func TestChecks(t *testing.T) {
	denied := os.ErrPermission
	forward := foreign.Chain{Family: "ip", Table: "filter", Name: "FORWARD", Hook: "forward", PolicyDrop: true}
	tests := []struct {
		name   string
		change func(*Facts)
		check  string
		status Status
		seen   string
		do     string
	}{
		{"old kernel", func(f *Facts) { f.Kernel = "5.10.0-30-amd64" }, "kernel", Fail, "Linux 5.10", "6.1 or later"},
		{"proxy on an old kernel", func(f *Facts) { f.Kernel, f.Mode = "5.10.0-30-amd64", "userspace" }, "kernel", Warn, "tested on 6.1 and later", "no other check fails"},
		{"oldest kernel", func(f *Facts) { f.Kernel = "6.1.0-30-amd64" }, "kernel", OK, "Linux 6.1.0", ""},
		{"odd kernel", func(f *Facts) { f.Kernel = "custom" }, "kernel", Warn, "cannot read the version", ""},
		{"room for neighbours", func(f *Facts) { f.Nodes, f.Neighbours = 1024, []Neighbours{{IPv4: true, Most: 1024}, {Most: 1024}} }, "neighbours", OK, "room for 1024 of IPv4 and 1024 of IPv6", ""},
		{"more nodes than neighbours", func(f *Facts) { f.Nodes, f.Neighbours = 1025, []Neighbours{{IPv4: true, Most: 1024}} }, "neighbours", Warn,
			"there are 1025 nodes, and the kernel knows 1024 neighbours of IPv4 at the most", "set net.ipv4.neigh.default.gc_thresh3 to 4100 or more"},
		{"a table of neighbours that was full", func(f *Facts) { f.Neighbours = []Neighbours{{IPv4: true, Most: 1024}, {Most: 512, Full: 3}} }, "neighbours", Warn,
			"the kernel's table of IPv6 neighbours was full 3 times since the machine started", "raise net.ipv6.neigh.default.gc_thresh3"},
		{"unprivileged", func(f *Facts) { f.NetAdmin = false }, "privileges", Fail, "CAP_NET_ADMIN is missing", "root"},
		{"missing feature", func(f *Facts) { f.Features[0].Err = f.Features[0].Missing(unix.EOPNOTSUPP) }, "nftables", Fail,
			"masquerade: not supported by this kernel: operation not supported (needs Linux 5.2 with nft_masq)", "modules"},
		{"missing program", func(f *Facts) { f.Features[0].Err = fmt.Errorf("find iptables-restore: %w", exec.ErrNotFound) }, "nftables", Fail, "find iptables-restore", "install it"},
		{"nftables unreadable", func(f *Facts) { f.FeaturesErr = denied }, "nftables", Warn, "cannot tell: permission denied", "root"},
		{"driver content", func(f *Facts) { f.DriverAsked = true }, "program", OK, "takes our nftables ruleset", ""},
		{"driver lacks something", func(f *Facts) { f.DriverAsked, f.Driver, f.DriverLacks = true, "other", "session affinity" }, "driver", Warn, "other cannot do session affinity", "sluice plan"},
		{"driver refuses", func(f *Facts) { f.DriverAsked, f.DriverErr = true, errors.New("no such map") }, "program", Fail, "no such map", "kernel"},
		{"policy cannot be", func(f *Facts) { f.PolicyFeatures[0].Err = f.PolicyFeatures[0].Missing(unix.EOPNOTSUPP) }, "policy", Fail,
			"connection labels: not supported by this kernel: operation not supported (needs Linux 4.8)", "--policy=false"},
		{"policy cannot be told", func(f *Facts) { f.PolicyErr = denied }, "policy", Warn, "cannot tell: permission denied", "root"},
		{"tunnels can be made", func(f *Facts) { f.FabricAsked, f.FabricFeatures = true, f.PolicyFeatures }, "fabric", OK, "can do: connection labels", ""},
		{"native routes", func(f *Facts) { f.FabricAsked = true }, "fabric", OK, "native routes need nothing", ""},
		{"tunnels cannot be made", func(f *Facts) {
			r := &probe.Requirement{Name: "IPIP", Since: "3.9", Modules: []string{"ipip"}}
			f.FabricAsked, f.FabricFeatures = true, []Feature{{r, r.Missing(unix.EOPNOTSUPP)}}
		}, "fabric", Fail, "IPIP: not supported by this kernel: operation not supported (needs Linux 3.9 with ipip)", "modprobe"},
		{"tunnels cannot be told", func(f *Facts) { f.FabricErr = denied }, "fabric", Warn, "cannot tell: permission denied", "root"},
		{"good offloads", func(f *Facts) { f.nic("virtio_net", "+rx-gro", "-tx-udp_tnl-segmentation!") }, "offloads", OK, "none at eth0 is known to ruin tunnels", ""},
		{"no GRO", func(f *Facts) { f.nic("e1000e", "-rx-gro") }, "offloads", Warn, "generic receive offload is off at eth0", "ethtool -K eth0 gro on"},
		{"no segmentation in tunnels", func(f *Facts) { f.nic("mlx5_core", "+rx-gro", "-tx-udp_tnl-segmentation") }, "offloads", Warn, "tx-udp_tnl-segmentation is off", "ethtool -K eth0 tx-udp_tnl-segmentation on"},
		{"no tunnels, no matter", func(f *Facts) { f.nic("mlx5_core", "-tx-udp_tnl-segmentation"); f.FabricVXLAN = false }, "offloads", OK, "none at eth0", ""},
		{"UDP joined in tunnels", func(f *Facts) { f.nic("ice", "+rx-udp-gro-forwarding"); f.Kernel = "6.1.0-30" }, "offloads", Warn, "rx-udp-gro-forwarding is on at eth0", "ethtool -K eth0 rx-udp-gro-forwarding off"},
		{"UDP joined by a later kernel", func(f *Facts) { f.nic("ice", "+rx-udp-gro-forwarding") }, "offloads", OK, "none at eth0", ""},
		{"checksums by vmxnet3", func(f *Facts) { f.nic("vmxnet3", "+rx-gro") }, "offloads", Warn, "eth0 is of driver vmxnet3", "ethtool -K sluice.vxlan tx-checksum-ip-generic off"},
		{"small packets of streams", func(f *Facts) {
			f.uplink()
			f.FabricVXLAN = false
			f.Uplinks[0].Streams, f.Uplinks[0].MostStreams = 65536, 524280
		}, "streams", OK, "TCP leaves by eth0 in packets of 64 kB, and could in 192", "ip link set eth0 gso_ipv4_max_size 196608 gro_ipv4_max_size 196608"},
		{"datagrams one by one", func(f *Facts) { f.uplink("+rx-gro", "-rx-udp-gro-forwarding", "-rx-gro-list") }, "datagrams", OK, "those that arrive by eth0 are forwarded one by one", "ethtool -K eth0 rx-udp-gro-forwarding on rx-gro-list off"},
		{"uplinks unreadable", func(f *Facts) { f.UplinkErr = denied }, "datagrams", Warn, "cannot tell", "root"},
		{"offloads unreadable", func(f *Facts) { f.NICErr = denied }, "offloads", Warn, "cannot tell", "root"},
		{"bridged pods", func(f *Facts) { f.Bridges = []string{"cni0"} }, "bridged pods", Warn, "behind cni0", "bridge-nf-call-iptables=1"},
		{"bridged pods that IP sees", func(f *Facts) { f.Bridges, f.BridgeCalls = []string{"cni0"}, true }, "bridged pods", OK, "by their addresses alone", ""},
		{"owned table", func(*Facts) {}, "table owner", OK, "Linux 6.9", ""},
		{"no owned table", func(f *Facts) { f.Optional[0].Err = f.Optional[0].Missing(unix.EINVAL) }, "table owner", OK, "not before Linux 6.9: put back within a second", ""},
		{"no route", func(f *Facts) { f.Families[0].RouteErr = unix.ENETUNREACH }, "route IPv4", Fail, "no route to 10.96.0.1: network is unreachable", "default route"},
		{"no forwarding", func(f *Facts) { f.Families[0].Forwards = false }, "forwarding IPv4", Warn, "off", "sluice run"},
		{"forwarding is off beside an agent", func(f *Facts) { f.Alive, f.Families[0].Forwards, f.Families[0].Forward = true, false, sysctl.Forward4 }, "forwarding IPv4", Warn, "off, though an agent runs", "sysctl -w net.ipv4.ip_forward=1"},
		{"learnt route", func(f *Facts) { f.Families[0].Forwards, f.Families[0].AdviceErr = false, errors.New("set accept_ra=2") }, "forwarding IPv4", Fail, "off", "set accept_ra=2"},
		{"one interface does not forward", func(f *Facts) { f.Forwarding = []string{"eth1"} }, "forwarding IPv4", Warn, "off on eth1", "net/ipv4/conf/eth1/forwarding=1"},
		{"strict path", func(f *Facts) { f.StrictPath = []string{"a", "b", "c", "d", "e", "f"} }, "rp_filter", Warn, "strict on a, b, c, d, e and 1 more", "net/ipv4/conf/a/rp_filter=2"},
		{"sysctls unreadable", func(f *Facts) { f.SysctlErr = denied }, "rp_filter", Warn, "cannot tell", "root"},
		{"no conntrack yet", func(f *Facts) { f.Conntrack = Conntrack{} }, "conntrack", OK, "not in use yet", ""},
		{"conntrack without limit", func(f *Facts) { f.Conntrack.Max = 0 }, "conntrack", OK, "no limit", ""},
		{"conntrack filling", func(f *Facts) { f.Conntrack.Count = 200000 }, "conntrack", Warn, "200000 of 262144 entries used: it is filling", "nf_conntrack_max=524288"},
		{"conntrack full", func(f *Facts) { f.Conntrack.Count = 262144 }, "conntrack", Fail, "new connections are dropped", "nf_conntrack_max"},
		{"conntrack small", func(f *Facts) { f.Conntrack.Max = 65536 }, "conntrack", Warn, "few", "nf_conntrack_max=131072"},
		{"conntrack unreadable", func(f *Facts) { f.Conntrack.CountErr = denied }, "conntrack", Warn, "cannot tell", "root"},
		{"not liberal", func(f *Facts) { f.Conntrack.Liberal = false }, "tcp_be_liberal", OK, "off, as it should be", ""},
		{"unknown dropping chain", func(f *Facts) { f.Chains = []foreign.Chain{forward} }, "other rules", Warn, "nftables chain ip filter FORWARD (forward) drops what its rules do not accept", "chain ip filter FORWARD"},
		{"Docker", func(f *Facts) {
			f.Chains = []foreign.Chain{forward, {Family: "ip", Table: "filter", Name: "DOCKER-USER"}}
		}, "other rules", Warn, "Docker: ", "iptables -I DOCKER-USER -d PODS"},
		{"Docker in IPv6", func(f *Facts) {
			f.Chains = []foreign.Chain{{Family: "ip6", Table: "filter", Name: "FORWARD", Hook: "forward", PolicyDrop: true}, {Family: "ip6", Table: "filter", Name: "DOCKER-USER"}}
		}, "other rules", Warn, "Docker: ", "ip6tables -I DOCKER-USER"},
		{"chains of another table say nothing", func(f *Facts) {
			f.Chains = []foreign.Chain{forward, {Family: "ip6", Table: "filter", Name: "DOCKER-USER"}}
		}, "other rules", Warn, "nftables chain", "add rules"},
		{"ufw beside Docker", func(f *Facts) {
			f.Chains = []foreign.Chain{forward, {Family: "ip", Table: "filter", Name: "DOCKER-USER"}, {Family: "ip", Table: "filter", Name: "ufw-user-forward"}}
		}, "other rules", Warn, "ufw: ", "ufw route allow"},
		{"firewalld", func(f *Facts) {
			f.Chains = []foreign.Chain{{Family: "inet", Table: "firewalld", Name: "filter_FORWARD", Hook: "forward", EndsIn: "reject", AcceptsTranslated: true}}
		}, "other rules", OK, "it accepts connections to services", ""},
		{"firewalld's input", func(f *Facts) {
			f.Chains = []foreign.Chain{{Family: "inet", Table: "firewalld", Name: "filter_INPUT", Hook: "input", EndsIn: "reject"}}
		}, "other rules", Warn, "rejects what its rules before do not accept; this concerns pods on the node's own address", "firewall-cmd"},
		{"rules unreadable", func(f *Facts) { f.ChainsErr = denied }, "other rules", Warn, "cannot tell", "root"},
		{"legacy tables that cannot be read", func(f *Facts) { f.Legacy = foreign.Legacy{Tables: []string{"IPv4 filter"}, ReadErr: foreign.ErrNoSave} }, "iptables-legacy", Warn, "IPv4 filter), not read", "install iptables"},
		{"legacy tables that accept", func(f *Facts) {
			f.Legacy = foreign.Legacy{Tables: []string{"IPv4 filter"}, Chains: []foreign.Chain{{Name: "FORWARD", Hook: "forward"}}}
		}, "iptables-legacy", OK, "in use (IPv4 filter)", ""},
		{"legacy tables that drop", func(f *Facts) {
			f.Legacy = foreign.Legacy{Tables: []string{"IPv4 filter"}, Chains: []foreign.Chain{{Family: "ip", Table: "filter", Name: "FORWARD", Legacy: true, Hook: "forward", PolicyDrop: true}}}
		}, "iptables-legacy", Warn, "iptables-legacy chain ip filter FORWARD (forward) drops", "pod network"},
		{"kube-proxy in iptables mode", func(f *Facts) { f.Chains = []foreign.Chain{{Family: "ip", Table: "nat", Name: "KUBE-SERVICES"}} }, "other proxies", Warn, "chain KUBE-SERVICES", "sluice takeover --from kube-proxy"},
		{"kube-proxy in legacy tables", func(f *Facts) { f.Legacy.Chains = []foreign.Chain{{Family: "ip", Table: "nat", Name: "KUBE-SERVICES"}} }, "other proxies", Warn, "chain KUBE-SERVICES", "sluice takeover --from kube-proxy"},
		{"kube-proxy in nftables mode", func(f *Facts) { f.Chains = []foreign.Chain{{Family: "ip", Table: "kube-proxy", Name: "services"}} }, "other proxies", Warn, "table kube-proxy", "sluice takeover --from kube-proxy"},
		{"IPVS", func(f *Facts) { f.IPVS = 3 }, "other proxies", Warn, "3 IPVS services", "sluice takeover --from kube-proxy"},
		{"kube-proxy without rules", func(f *Facts) { f.Processes = []string{"kube-proxy"} }, "other proxies", Warn, "kube-proxy runs", "sluice takeover --from kube-proxy"},
		{"two backends of iptables", func(f *Facts) {
			f.Legacy.Tables, f.Legacy.Chains = []string{"IPv4 nat"}, foreign.LegacyChains("ip", xtables.Parse("*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -i lo -j ACCEPT\nCOMMIT\n"))
			f.Chains = []foreign.Chain{{Family: "ip", Table: "filter", Name: "INPUT", Hook: "input"}}
		}, "iptables backends", Warn, "iptables-legacy (IPv4 nat) and iptables-nft (ip filter)", "update-alternatives"},
		{"Calico", func(f *Facts) {
			f.PolicyAsked, f.Devices = true, []string{"eth0", "cali0123"}
			f.Chains = []foreign.Chain{{Family: "ip", Table: "filter", Name: "cali-FORWARD"}}
		}, "pod network", Warn, "Calico (interface cali0123, chain ip filter cali-FORWARD): it carries out policy as well", "--policy=false"},
		{"Calico's nftables", func(f *Facts) {
			f.PolicyAsked, f.Chains = true, []foreign.Chain{{Family: "ip", Table: "calico", Name: "filter-FORWARD", Hook: "forward"}}
		}, "pod network", Warn, "Calico (chain ip calico filter-FORWARD)", "--policy=false"},
		{"Calico, policy left to it", func(f *Facts) { f.Processes = []string{"calico-node"} }, "pod network", OK, "Calico (process calico-node): it carries out policy", ""},
		{"Calico with eBPF", func(f *Facts) { f.Devices = []string{"bpfin.cali"} }, "pod network", Warn, "before nftables", "bpfEnabled: false"},
		{"Cilium", func(f *Facts) { f.PolicyAsked, f.Devices = true, []string{"cilium_host"} }, "pod network", Warn, "Cilium (interface cilium_host)", "kubeProxyReplacement=false"},
		{"Cilium, policy left to it", func(f *Facts) { f.Processes = []string{"cilium-agent"} }, "pod network", Warn, "Cilium (process cilium-agent)", "kubeProxyReplacement=false"},
		{"kube-router", func(f *Facts) {
			f.PolicyAsked, f.Legacy.Chains = true, []foreign.Chain{{Family: "ip", Table: "filter", Name: "KUBE-ROUTER-INPUT"}}
		}, "pod network", Warn, "kube-router (chain ip filter KUBE-ROUTER-INPUT)", "--run-firewall=false"},
		{"kube-router, policy left to it", func(f *Facts) { f.Devices = []string{"kube-bridge"} }, "pod network", Warn, "kube-router", "--run-service-proxy=false"},
		{"taken ports", func(f *Facts) { f.Taken = []string{"127.0.0.1:10249"} }, "ports", Warn, "listens on 127.0.0.1:10249", "--metrics-address"},
		{"kube-proxy has them", func(f *Facts) {
			f.Taken, f.Chains = []string{"127.0.0.1:10249", "127.0.0.1:10256"}, []foreign.Chain{{Family: "ip", Table: "kube-proxy", Name: "services"}}
		}, "ports", OK, "kube-proxy has 127.0.0.1:10249 and 127.0.0.1:10256: the agent serves", ""},
		{"an old kube-proxy", func(f *Facts) { f.Taken, f.NoLivez = []string{"127.0.0.1:10256"}, true }, "ports", Warn, "no /livez, as kube-proxy before 1.28", "healthzAddress=:10266"},
		{"memory limit", func(f *Facts) { f.Memory = Memory{Limit: 128 << 20, Where: "memory.max"} }, "memory", Warn, "128 MiB at the most (memory.max)", "no memory limit"},
		{"generous memory limit", func(f *Facts) { f.Memory = Memory{Limit: 4 << 30, Where: "memory.max"} }, "memory", OK, "4096 MiB", ""},
		{"unknown memory limit", func(f *Facts) { f.Memory.Err = denied }, "memory", Warn, "cannot tell", "root"},
		{"another agent", func(f *Facts) { f.Alive = true }, "agent", Warn, "answers on /run/sluice/sluice.sock", "sluice status"},
		{"a dead agent's table", func(f *Facts) { f.OwnTable = true }, "agent", OK, "the next adopts it", ""},
		{"sysctls that are ours no longer", func(f *Facts) { f.Undone = []sysctl.Override{{Key: sysctl.Forward4, Was: "1", Now: "0"}} }, "sysctls", Warn, "changed by another program since: net.ipv4.ip_forward = 0 (was 1); else none set by us", "find who"},
		{"sysctls of ours", func(f *Facts) { f.Changed = []sysctl.Override{{Key: sysctl.Forward4, Was: "0", Now: "1"}} }, "sysctls", OK, "net.ipv4.ip_forward = 1 (was 0)", ""},
		{"broken record", func(f *Facts) { f.RecordErr = denied }, "sysctls", Warn, "permission denied", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := healthy()
			tt.change(f)
			results := Check(f)
			for _, r := range results {
				if r.Check == tt.check && r.Status == tt.status && strings.Contains(r.Seen, tt.seen) &&
					strings.Contains(r.Do, tt.do) && (tt.do != "" || r.Do == "") {
					if Failed(results) != (tt.status == Fail) {
						t.Errorf("Failed is %v", Failed(results))
					}
					return
				}
			}
			t.Errorf("no %s result of %s that says %q and advises %q in %+v", tt.status, tt.check, tt.seen, tt.do, results)
		})
	}
}

func TestMemoryLimit(t *testing.T) {
	root := t.TempDir()
	write := func(file, text string) {
		t.Helper()
		file = filepath.Join(root, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("kubepods/memory.max", "1073741824\n")
	write("kubepods/pod1/memory.max", "134217728\n")
	write("kubepods/pod1/sluice/memory.max", "max\n")
	write("memory/docker/memory.limit_in_bytes", "9223372036854771712\n")
	write("memory/docker/box/memory.limit_in_bytes", "268435456\n")
	for cgroups, want := range map[string]uint64{
		"0::/kubepods/pod1/sluice\n": 128 << 20,
		"0::/kubepods\n":             1 << 30,
		"0::/\n":                     0,
		"0::/../gone\n":              0,
		"7:memory:/docker/box\n1:name=systemd:/\n": 256 << 20,
		"7:memory:/docker\n":                       0,
		"":                                         0,
	} {
		if m := memoryLimit(root, cgroups); m.Limit != want || m.Err != nil {
			t.Errorf("limit of %q is %+v, want %d", cgroups, m, want)
		}
	}
}

func TestPrint(t *testing.T) {
	var b bytes.Buffer
	Print(&b, []Result{
		{Check: "kernel", Status: OK, Seen: "Linux 6.1"},
		{Check: "rp_filter", Status: Warn, Seen: "strict on eth0", Do: "make it loose"},
	})
	want := "ok\tkernel\tLinux 6.1\nwarn\trp_filter\tstrict on eth0\n\t\t> make it loose\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}

func TestTableFulls(t *testing.T) {
	const stat = "entries  allocs   unresolved_discards table_fulls\n0000000b 0002f8e3 00000000            000055be\n0000000b 0002e1bc 00000000            0000000f\n"
	if n := tableFulls(stat); n != 0x55be+0xf {
		t.Errorf("%d", n)
	}
	for _, stat := range []string{"", "entries\n1\n", "entries table_fulls\n1\n"} {
		if n := tableFulls(stat); n != 0 {
			t.Errorf("%q: %d", stat, n)
		}
	}
}
