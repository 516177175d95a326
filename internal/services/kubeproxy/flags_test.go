package kubeproxy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// command has flags as `sluice run` does.
func command(t *testing.T, args ...string) *Flags {
	t.Helper()
	fs := pflag.NewFlagSet("run", pflag.ContinueOnError)
	fs.String("kubeconfig", "", "")
	fs.String("cluster-cidr", "", "")
	fs.Bool("masquerade-all", false, "")
	fs.String("nodeport-addresses", "", "")
	fs.String("ipvs-scheduler", "rr", "")
	fs.String("ours", "", "")
	f := &Flags{}
	f.Register(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return f
}

// Every flag of kube-proxy 1.37 for Linux is known.
func TestEveryFlag(t *testing.T) {
	want := strings.Fields(`bind-address bind-address-hard-fail cleanup cluster-cidr config config-sync-period
		conntrack-max-per-core conntrack-min conntrack-tcp-be-liberal conntrack-tcp-timeout-close-wait
		conntrack-tcp-timeout-established conntrack-udp-timeout conntrack-udp-timeout-stream detect-local-mode
		feature-gates healthz-bind-address healthz-port hostname-override init-only iptables-localhost-nodeports
		iptables-masquerade-bit iptables-min-sync-period iptables-sync-period ipvs-exclude-cidrs ipvs-min-sync-period
		ipvs-scheduler ipvs-strict-arp ipvs-sync-period ipvs-tcp-timeout ipvs-tcpfin-timeout ipvs-udp-timeout
		kube-api-burst kube-api-content-type kube-api-qps kubeconfig log-flush-frequency log-json-info-buffer-size
		log-json-split-stream log-text-info-buffer-size log-text-split-stream logging-format masquerade-all master
		metrics-bind-address metrics-port nodeport-addresses oom-score-adj pod-bridge-interface
		pod-interface-name-prefix profiling proxy-mode show-hidden-metrics-for-version v vmodule write-config-to`)
	var got []string
	command(t).all.VisitAll(func(flag *pflag.Flag) {
		if flag.Name != "ours" {
			got = append(got, flag.Name)
		}
	})
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestGiven(t *testing.T) {
	for args, want := range map[string]bool{
		"": false, "--kubeconfig=/k --cluster-cidr=10.0.0.0/8": false, "-v=2 --logging-format=json": false, "--ours=x": false,
		"--config=/f": true, "--proxy-mode=iptables": true, "--conntrack-min=0": true, "--hostname-override=a": true,
	} {
		if got := command(t, strings.Fields(args)...).Given(); got != want {
			t.Errorf("%q: %v", args, got)
		}
	}
}

// What k3s starts kube-proxy with.
func TestK3s(t *testing.T) {
	l, err := command(t, "--cluster-cidr=10.42.0.0/16", "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-close-wait=0s",
		"--conntrack-tcp-timeout-established=0s", "--healthz-bind-address=127.0.0.1", "--hostname-override=K3s-Server",
		"--kubeconfig=/var/lib/rancher/k3s/agent/kubeproxy.kubeconfig", "--proxy-mode=iptables").Load()
	if err != nil || len(l.Notes) > 0 {
		t.Fatal(l.Notes, err)
	}
	s, err := l.Config.Settings(ModeNFTables)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/k3s.golden", s)
}

// What the flags do that don't only fill a field.
func TestFlags(t *testing.T) {
	for args, check := range map[string]func(*Config) bool{
		"--proxy-mode=nftables --masquerade-all":                            func(c *Config) bool { return c.NFTables.MasqueradeAll && !c.IPTables.MasqueradeAll },
		"--proxy-mode=ipvs --masquerade-all":                                func(c *Config) bool { return c.IPTables.MasqueradeAll && !c.NFTables.MasqueradeAll },
		"--iptables-sync-period=1m --ipvs-sync-period=2m":                   func(c *Config) bool { return c.IPTables.SyncPeriod.Minutes() == 1 && c.IPVS.SyncPeriod.Seconds() == 30 },
		"--proxy-mode=nftables --iptables-min-sync-period=5s":               func(c *Config) bool { return c.NFTables.MinSyncPeriod.Seconds() == 5 },
		"--proxy-mode=ipvs --ipvs-sync-period=2m --ipvs-min-sync-period=1s": func(c *Config) bool { return c.IPVS.SyncPeriod.Minutes() == 2 && c.IPVS.MinSyncPeriod.Seconds() == 1 },
		"--healthz-bind-address=::1 --healthz-port=9":                       func(c *Config) bool { return c.HealthzBindAddress == "[::1]:9" },
		"--healthz-port=0 --bind-address=192.0.2.1":                         func(c *Config) bool { return c.HealthzBindAddress == "" && c.MetricsBindAddress == "127.0.0.1:10249" },
		"--metrics-bind-address= --healthz-bind-address=192.0.2.1:80": func(c *Config) bool {
			return c.MetricsBindAddress == "127.0.0.1:10249" && c.HealthzBindAddress == "192.0.2.1:80"
		},
		"--feature-gates=A=true,B=false --feature-gates=C=true": func(c *Config) bool { return c.FeatureGates["A"] && !c.FeatureGates["B"] && c.FeatureGates["C"] },
		"--nodeport-addresses=primary,192.0.2.0/24":             func(c *Config) bool { return slices.Equal(c.NodePortAddresses, []string{"primary", "192.0.2.0/24"}) },
		"--proxy-mode=ipvs":                         func(c *Config) bool { return c.IPVS.Scheduler == "" },
		"--proxy-mode=ipvs --ipvs-scheduler=lc":     func(c *Config) bool { return c.IPVS.Scheduler == "lc" },
		"--kubeconfig=/k --cluster-cidr=10.0.0.0/8": func(c *Config) bool { return c.ClientConnection.Kubeconfig == "/k" && c.ClusterCIDR == "10.0.0.0/8" },
		"-v=6 --vmodule=proxier=9 --logging-format=json": func(c *Config) bool {
			return c.Logging.Verbosity == 6 && len(c.Logging.VModule) == 1 && c.Logging.Format == "json"
		},
		"--hostname-override=Node-A --oom-score-adj=1": func(c *Config) bool { return c.HostnameOverride == "node-a" && *c.OOMScoreAdj == 1 },
	} {
		l, err := command(t, strings.Fields(args)...).Load()
		if err != nil || !check(l.Config) {
			t.Errorf("%q: %+v, %v", args, l.Config, err)
		}
	}
}

func TestBadFlags(t *testing.T) {
	for _, arg := range []string{"--bind-address=here", "--bind-address=192.0.2.1:80", "--healthz-bind-address=here", "--healthz-bind-address=here:80",
		"--feature-gates=A", "--oom-score-adj=x"} {
		fs := pflag.NewFlagSet("run", pflag.ContinueOnError)
		(&Flags{}).Register(fs)
		if err := fs.Parse([]string{arg}); err == nil {
			t.Errorf("%s is taken", arg)
		}
	}
	for arg, want := range map[string]string{
		"--cleanup":                "sluice cleanup",
		"--master=https://x":       "kubeconfig",
		"--config=/does/not/exist": "read --config",
		"--hostname-override= ":    "--hostname-override",
	} {
		if _, err := command(t, arg).Load(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", arg, err)
		}
	}
}

// Beside a file only the node's name and the log are for flags to say.
func TestFileAndFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.conf")
	if err := os.WriteFile(file, []byte(head+"clusterCIDR: 10.244.0.0/16\nlogging: {verbosity: 1}\nbogus: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := command(t, "--config", file, "--hostname-override=B", "-v=3", "--cluster-cidr=10.0.0.0/8", "--kubeconfig=/k", "--oom-score-adj=0", "--ipvs-scheduler=lc", "--ours=x").Load()
	if err != nil {
		t.Fatal(err)
	}
	c := l.Config
	if c.ClusterCIDR != "10.244.0.0/16" || c.ClientConnection.Kubeconfig != "" || *c.OOMScoreAdj != -999 || c.HostnameOverride != "b" || c.Logging.Verbosity != 3 {
		t.Errorf("got %+v", c)
	}
	want := "flags that do not count beside --config, as with kube-proxy: --cluster-cidr, --kubeconfig, --oom-score-adj"
	if len(l.Notes) != 2 || !strings.Contains(l.Notes[0], `unknown field "bogus"`) || l.Notes[1] != want {
		t.Errorf("notes %q", l.Notes)
	}
}
