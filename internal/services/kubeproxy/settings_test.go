package kubeproxy

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden files anew")

func comparePrefixes(a, b netip.Prefix) bool { return a == b }
func compareAddrs(a, b netip.Addr) bool      { return a == b }

// golden compares settings with what a file says of them.
func golden(t *testing.T, path string, s Settings) {
	t.Helper()
	got, err := yaml.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("settings differ from %s (-want +got); -update writes it anew:\n%s", path, diff)
	}
}

// Configurations as they are found in clusters, and one with every field.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c, odd, err := Decode(text)
		if err != nil || odd != nil {
			t.Fatalf("%s: %v, %v", file, odd, err)
		}
		s, err := c.Settings(ModeNFTables)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		golden(t, strings.TrimSuffix(file, "yaml")+"golden", s)
	}
}

// The full example really has every field, so that none is forgotten here.
func TestFullHasEveryField(t *testing.T) {
	text, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c := Config{}
	if err := yaml.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	everyField(t, reflect.ValueOf(c), "")
}

func everyField(t *testing.T, v reflect.Value, path string) {
	may := []string{".Logging.Options.JSON.SplitStream", ".IPTables.MasqueradeAll"} // false in the example
	for i := range v.NumField() {
		name := path + "." + v.Type().Field(i).Name
		switch f := v.Field(i); {
		case f.Kind() == reflect.Struct && f.Type().PkgPath() == v.Type().PkgPath():
			everyField(t, f, name)
		case f.IsZero() && !contains(may, name):
			t.Errorf("the example has no %s", name)
		}
	}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

const head = "apiVersion: " + APIVersion + "\nkind: " + Kind + "\n"

func settings(t *testing.T, text string) Settings {
	t.Helper()
	c, odd, err := Decode([]byte(head + text))
	if err != nil || odd != nil {
		t.Fatalf("%v, %v: %s", odd, err, text)
	}
	s, err := c.Settings(ModeNFTables)
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return s
}

// What each field does, against what an empty file comes to.
func TestFields(t *testing.T) {
	prefixes := func(list string) (ps []netip.Prefix) {
		for _, p := range strings.Fields(list) {
			ps = append(ps, netip.MustParsePrefix(p))
		}
		return ps
	}
	const all = "0.0.0.0/0 ::/0"
	ipvs := func(s *Settings) {
		s.Notes = []string{"mode ipvs is not followed: Sluice serves by --mode nftables, and --mode ipvs chooses that one"}
	}
	noLoopback := "node ports are not served on loopback addresses, as in kube-proxy's nftables mode"
	nft := func(s *Settings) { s.NodePortPrimary, s.NodePortAddresses, s.Notes = true, nil, nil }
	for _, tc := range []struct {
		name, text string
		want       func(*Settings)
	}{
		{"nothing", "", func(*Settings) {}},
		{"kubeconfig", "clientConnection: {kubeconfig: /k}", func(s *Settings) { s.Kubeconfig = "/k" }},
		{"how to ask the API", "clientConnection: {qps: 1, burst: 2, contentType: application/json, acceptContentTypes: x}", func(*Settings) {}},
		{"hostnameOverride", `hostnameOverride: " Node-A "`, func(s *Settings) { s.Node = "node-a" }},
		{"bindAddress", "bindAddress: 192.0.2.1", func(s *Settings) { s.PrimaryAddr = netip.MustParseAddr("192.0.2.1") }},
		{"bindAddress of IPv6", `bindAddress: "2001:db8::1"`, func(s *Settings) {
			s.PrimaryAddr, s.HealthzAddress, s.MetricsAddress = netip.MustParseAddr("2001:db8::1"), "[::]:10256", "[::1]:10249"
		}},
		{"bindAddress of all of IPv6", `bindAddress: "::"`, func(s *Settings) { s.HealthzAddress, s.MetricsAddress = "[::]:10256", "[::1]:10249" }},
		{"healthzBindAddress", "healthzBindAddress: 192.0.2.1:1", func(s *Settings) { s.HealthzAddress = "192.0.2.1:1" }},
		{"healthzBindAddress without port", "healthzBindAddress: 127.0.0.1", func(s *Settings) { s.HealthzAddress = "127.0.0.1:10256" }},
		{"metricsBindAddress without port", `metricsBindAddress: "::1"`, func(s *Settings) { s.MetricsAddress = "[::1]:10249" }},
		{"bindAddressHardFail", "bindAddressHardFail: true", func(s *Settings) { s.MustServe = true }},
		{"enableProfiling", "enableProfiling: true", func(s *Settings) { s.Profiling = true }},
		{"showHiddenMetricsForVersion", `showHiddenMetricsForVersion: "1.36"`, func(*Settings) {}},

		{"mode nftables", "mode: nftables", nft},
		{"mode ipvs", "mode: ipvs", ipvs},
		{"scheduler", "mode: ipvs\nipvs: {scheduler: lc}", func(s *Settings) {
			ipvs(s)
			s.Notes = append(s.Notes, "ipvs.scheduler lc: without --mode ipvs, connections are spread at random")
		}},
		{"ipvs round robin", "mode: ipvs\nipvs: {scheduler: rr, strictARP: true, excludeCIDRs: [10.0.0.0/8]}", ipvs},
		{"ipvs timeouts", "mode: ipvs\nipvs: {udpTimeout: 1s}", func(s *Settings) {
			ipvs(s)
			s.Notes = append(s.Notes, "ipvs timeouts are not set")
		}},
		{"ipvs settings in another mode", "ipvs: {scheduler: sh, udpTimeout: 1s}", func(*Settings) {}},
		{"masqueradeAll", "iptables: {masqueradeAll: true}", func(s *Settings) { s.MasqueradeAll = true }},
		{"masqueradeAll of another mode", "nftables: {masqueradeAll: true}", func(*Settings) {}},
		{"masqueradeAll of nftables", "mode: nftables\nnftables: {masqueradeAll: true}", func(s *Settings) { nft(s); s.MasqueradeAll = true }},
		{"masqueradeBit", "iptables: {masqueradeBit: 3}\nnftables: {masqueradeBit: 99}", func(*Settings) {}},
		{"localhostNodePorts", "iptables: {localhostNodePorts: false}", func(s *Settings) { s.Notes = s.Notes[:1] }},
		{"syncPeriod", "iptables: {syncPeriod: 1m, minSyncPeriod: 10s}", func(s *Settings) { s.UnhealthyAfter = 2 * time.Minute }},
		{"syncPeriod of another mode", "ipvs: {syncPeriod: 1m}", func(*Settings) {}},

		{"clusterCIDR", "clusterCIDR: 10.244.0.1/16", func(s *Settings) { s.ClusterCIDRs = prefixes("10.244.0.0/16") }},
		{"clusterCIDR of both families", "clusterCIDR: 10.244.0.0/16,fd00::/64", func(s *Settings) { s.ClusterCIDRs = prefixes("10.244.0.0/16 fd00::/64") }},
		{"NodeCIDR", "detectLocalMode: NodeCIDR\nclusterCIDR: 10.244.0.0/16", func(s *Settings) { s.NodeCIDRs = true }},

		{"node ports on CIDRs", "nodePortAddresses: [192.0.2.0/24, 'fd00::/64']", func(s *Settings) {
			s.NodePortAddresses, s.Notes = prefixes("192.0.2.0/24 fd00::/64"), s.Notes[:1]
		}},
		{"node ports on CIDRs of one family, all of the other", "nodePortAddresses: [192.0.2.0/24]", func(s *Settings) {
			s.NodePortAddresses, s.Notes = prefixes("192.0.2.0/24 ::/0"), s.Notes[:1]
		}},
		{"node ports on the primary address", "nodePortAddresses: [primary]", func(s *Settings) {
			s.NodePortAddresses, s.NodePortPrimary, s.Notes = nil, true, s.Notes[:1]
		}},
		{"node ports on that and others", "nodePortAddresses: [primary, 192.0.2.0/24]", func(s *Settings) {
			s.NodePortAddresses, s.NodePortPrimary, s.Notes = prefixes("192.0.2.0/24"), true, s.Notes[:1]
		}},
		{"node ports on all", "mode: nftables\nnodePortAddresses: [all]", func(s *Settings) { s.NodePortAddresses, s.Notes = prefixes(all), nil }},
		{"node ports on loopback", "mode: nftables\nnodePortAddresses: [localhost]", func(s *Settings) {
			s.NodePortAddresses, s.Notes = prefixes("127.0.0.0/8 ::1/128"), []string{noLoopback}
		}},

		{"oomScoreAdj", "oomScoreAdj: 0", func(s *Settings) { s.OOMScoreAdj = 0 }},
		{"conntrack", "conntrack: {maxPerCore: 1, min: 2, tcpBeLiberal: true}", func(s *Settings) {
			one, two := int32(1), int32(2)
			s.Conntrack.MaxPerCore, s.Conntrack.Min, s.Conntrack.TCPBeLiberal = &one, &two, true
		}},
		{"configSyncPeriod", "configSyncPeriod: 1m", func(*Settings) {}},
		{"verbosity", "logging: {verbosity: 4}", func(s *Settings) { s.Debug = true }},
		{"less verbosity", "logging: {verbosity: 3, flushFrequency: 5000000000}", func(*Settings) {}},
		{"format", "logging: {format: json}", func(s *Settings) { s.LogJSON = true }},
		{"vmodule", "logging: {vmodule: [{filePattern: x, verbosity: 1}]}", func(s *Settings) {
			s.Notes = append(s.Notes, "logging.vmodule has no meaning: it names kube-proxy's source files")
		}},
		{"feature gates", "featureGates: {B: true, A: false}", func(s *Settings) { s.Notes = append(s.Notes, "feature gates have no meaning: A, B") }},
		{"Windows", "winkernel: {enableDSR: true}", func(s *Settings) { s.Notes = append(s.Notes, "settings of Windows have no meaning") }},
		{"portRange", "portRange: 1-2", func(s *Settings) { s.Notes = append(s.Notes, "portRange has no meaning") }},
	} {
		want := settings(t, "")
		tc.want(&want)
		if diff := cmp.Diff(want, settings(t, tc.text), cmp.Comparer(comparePrefixes), cmp.Comparer(compareAddrs)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

// With --mode ipvs the scheduler is followed, whichever it is. Any other mode is named beside the
// one that was asked for.
func TestOwnMode(t *testing.T) {
	for _, tc := range []struct{ text, serves, note string }{
		{"mode: ipvs\nipvs: {scheduler: sh}\nnodePortAddresses: [primary]", "ipvs", ""},
		{"mode: iptables\nnodePortAddresses: [primary]", "iptables", ""},
		{"mode: iptables\nnodePortAddresses: [primary]", "ipvs", "mode iptables is not followed: Sluice serves by --mode ipvs, and --mode iptables chooses that one"},
		{"mode: nftables", "auto", "mode nftables is not followed: Sluice serves by --mode auto, and --mode nftables chooses that one"},
	} {
		c, _, err := Decode([]byte(head + tc.text))
		if err != nil {
			t.Fatal(err)
		}
		if s, err := c.Settings(tc.serves); err != nil || strings.Join(s.Notes, "; ") != tc.note {
			t.Errorf("--mode %s with %q: %v, %v", tc.serves, tc.text, s.Notes, err)
		}
	}
}

// What is refused, and what that says.
func TestRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"mode: userspace":                                                        `mode: "userspace" is not`,
		"mode: kernelspace":                                                      "mode:",
		"mode: ipvs\nipvs: {scheduler: sh}":                                      "give --mode ipvs, or set sessionAffinity: ClientIP on the services that need it",
		"mode: ipvs\nipvs: {tcpTimeout: -1s}":                                    "ipvs.tcpTimeout: -1s is less than 0",
		"mode: ipvs\nipvs: {excludeCIDRs: [x]}":                                  `ipvs.excludeCIDRs[0]: "x" is no CIDR`,
		"iptables: {masqueradeBit: 32}":                                          "iptables.masqueradeBit: 32 is not within 0 and 31",
		"mode: nftables\nnftables: {masqueradeBit: -1}":                          "nftables.masqueradeBit",
		"oomScoreAdj: 1001":                                                      "oomScoreAdj: 1001 is not within -1000 and 1000",
		"conntrack: {maxPerCore: -1}":                                            "conntrack.maxPerCore",
		"conntrack: {min: -1}":                                                   "conntrack.min",
		"conntrack: {tcpEstablishedTimeout: -1s}":                                "conntrack.tcpEstablishedTimeout: -1s is less than 0",
		"conntrack: {tcpCloseWaitTimeout: -1s}":                                  "conntrack.tcpCloseWaitTimeout",
		"conntrack: {udpTimeout: -1s}":                                           "conntrack.udpTimeout",
		"conntrack: {udpStreamTimeout: -1s}":                                     "conntrack.udpStreamTimeout",
		"clientConnection: {burst: -1}":                                          "clientConnection.burst",
		"configSyncPeriod: -1s":                                                  "configSyncPeriod",
		"iptables: {syncPeriod: -1s}":                                            "iptables.syncPeriod",
		"iptables: {minSyncPeriod: 40s}":                                         "iptables.minSyncPeriod: 40s is longer than iptables.syncPeriod, 30s",
		"bindAddress: here":                                                      `bindAddress: "here" is no IP address`,
		"healthzBindAddress: here":                                               `healthzBindAddress: "here" is not IP:port`,
		"healthzBindAddress: here:80":                                            `healthzBindAddress: "here" is no IP address`,
		"metricsBindAddress: 127.0.0.1:99999":                                    `metricsBindAddress: "99999" is no port`,
		"nodePortAddresses: [primary, primary]":                                  `nodePortAddresses[1]: "primary" is there twice`,
		"nodePortAddresses: [192.0.2.1]":                                         `nodePortAddresses[0]: "192.0.2.1" is neither a CIDR nor`,
		"clusterCIDR: 10.0.0.0":                                                  `clusterCIDR: "10.0.0.0" is no CIDR`,
		"clusterCIDR: 10.0.0.0/16,10.1.0.0/16":                                   "give one CIDR, or one of each family",
		"detectLocalMode: ByLuck":                                                `detectLocalMode: "ByLuck" is not`,
		"detectLocalMode: BridgeInterface":                                       "detectLocal.bridgeInterface: name the bridge",
		"detectLocalMode: InterfaceNamePrefix":                                   "detectLocal.interfaceNamePrefix: say how",
		"detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}": "say NodeCIDR, or ClusterCIDR with clusterCIDR",
		"detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}": "detectLocalMode: InterfaceNamePrefix: Sluice tells pods by their addresses",
		"logging: {format: xml}": `logging.format: "xml" is neither text nor json`,
	} {
		c, odd, err := Decode([]byte(head + text))
		if err != nil || odd != nil {
			t.Errorf("%s: %v, %v", text, odd, err)
			continue
		}
		if _, err := c.Settings(ModeNFTables); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}
