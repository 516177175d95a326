package kubeproxy

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Flags are kube-proxy's, except for those in shared, which the command has anyway. Register them,
// parse the command line, then Load.
type Flags struct {
	File     string // --config
	WriteTo  string // --write-config-to
	InitOnly bool   // --init-only
	cleanup  bool
	master   string

	config                   *Config // what the flags say, where there is no file
	hostname                 string
	syncs                    map[string]*time.Duration // those flags whose meaning depends on the mode
	healthzPort, metricsPort int32
	vmodule                  string
	flush                    *time.Duration

	own *pflag.FlagSet // ours alone
	all *pflag.FlagSet // the command's
}

// shared are the flags of the command that kube-proxy has under the same name. Their values' String
// must be what kube-proxy takes.
var shared = []string{"kubeconfig", "cluster-cidr", "masquerade-all", "nodeport-addresses", "ipvs-scheduler"}

// besideFile are the flags that count beside a file; kube-proxy ignores the others.
// --ipvs-scheduler does so for --mode ipvs.
var besideFile = []string{"config", "write-config-to", "init-only", "cleanup", "master", "hostname-override", "ipvs-scheduler"}

// logging are flags that say nothing about who carries out services.
var logging = []string{"v", "vmodule", "logging-format", "log-flush-frequency", "log-text-split-stream", "log-text-info-buffer-size",
	"log-json-split-stream", "log-json-info-buffer-size"}

// Register adds the flags to those of a command. They are hidden, except for --config: there are
// many of them.
func (f *Flags) Register(fs *pflag.FlagSet) {
	f.config, f.syncs = Default(), map[string]*time.Duration{}
	f.own, f.all = pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError), fs
	f.addCommand(f.own)
	f.addServers(f.own)
	f.addProxy(f.own)
	f.addConntrack(f.own)
	f.addLogging(f.own)
	f.own.VisitAll(func(flag *pflag.Flag) { flag.Hidden = flag.Name != "config" })
	fs.AddFlagSet(f.own)
}

func (f *Flags) addCommand(fs *pflag.FlagSet) {
	c := f.config
	fs.StringVar(&f.File, "config", "", "take kube-proxy's place on this node with its own configuration `file`; its flags are accepted, too")
	fs.StringVar(&f.WriteTo, "write-config-to", "", "write the configuration that results to this `file`, and end")
	fs.BoolVar(&f.InitOnly, "init-only", false, "set kernel parameters, and end")
	fs.BoolVar(&f.cleanup, "cleanup", false, "refused: 'sluice cleanup' removes what Sluice programmed")
	fs.StringVar(&f.master, "master", "", "refused: the kubeconfig file says where the API server is")
	fs.StringVar(&f.hostname, "hostname-override", "", "`name` of this node's Node object")
	fs.StringVar(&c.ClientConnection.ContentType, "kube-api-content-type", c.ClientConnection.ContentType, "without meaning")
	fs.Int32Var(&c.ClientConnection.Burst, "kube-api-burst", c.ClientConnection.Burst, "without meaning")
	fs.Float32Var(&c.ClientConnection.QPS, "kube-api-qps", c.ClientConnection.QPS, "without meaning")
	fs.DurationVar(&c.ConfigSyncPeriod.Duration, "config-sync-period", c.ConfigSyncPeriod.Duration, "without meaning")
	fs.Func("feature-gates", "without meaning", c.setGates)
	fs.Int32Var(c.OOMScoreAdj, "oom-score-adj", *c.OOMScoreAdj, "oom_score_adj of this process")
}

func (f *Flags) addServers(fs *pflag.FlagSet) {
	c := f.config
	fs.Func("bind-address", "the node's own address, for node ports on 'primary'", address(&c.BindAddress, false))
	fs.Func("healthz-bind-address", "serve /healthz and /livez here", address(&c.HealthzBindAddress, true))
	fs.Func("metrics-bind-address", "serve metrics here", address(&c.MetricsBindAddress, true))
	fs.BoolVar(&c.BindAddressHardFail, "bind-address-hard-fail", false, "end if an address to serve on is taken")
	fs.BoolVar(&c.EnableProfiling, "profiling", false, "serve profiles beside metrics")
	fs.StringVar(&c.ShowHiddenMetricsForVersion, "show-hidden-metrics-for-version", "", "without meaning")
	fs.Int32Var(&f.healthzPort, "healthz-port", HealthzPort, "port for --healthz-bind-address; 0 for nowhere")
	fs.Int32Var(&f.metricsPort, "metrics-port", MetricsPort, "port for --metrics-bind-address; 0 for nowhere")
}

func (f *Flags) addProxy(fs *pflag.FlagSet) {
	c := f.config
	fs.StringVar(&c.Mode, "proxy-mode", "", "kube-proxy's mode, for its defaults alone; --mode chooses how services are carried out")
	fs.StringVar(&c.DetectLocalMode, "detect-local-mode", "", "how pods' connections are told from others")
	fs.StringVar(&c.DetectLocal.BridgeInterface, "pod-bridge-interface", "", "bridge of the pods")
	fs.StringVar(&c.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "", "how names of the pods' interfaces begin")
	fs.Int32Var(c.IPTables.MasqueradeBit, "iptables-masquerade-bit", *c.IPTables.MasqueradeBit, "without meaning")
	fs.BoolVar(c.IPTables.LocalhostNodePorts, "iptables-localhost-nodeports", *c.IPTables.LocalhostNodePorts, "node ports are never served on loopback")
	for _, name := range []string{"iptables-sync-period", "iptables-min-sync-period", "ipvs-sync-period", "ipvs-min-sync-period"} {
		f.syncs[name] = fs.Duration(name, 0, "without meaning, except for how long a change may wait")
	}
	fs.StringSliceVar(&c.IPVS.ExcludeCIDRs, "ipvs-exclude-cidrs", nil, "without meaning")
	fs.BoolVar(&c.IPVS.StrictARP, "ipvs-strict-arp", false, "without meaning")
	fs.DurationVar(&c.IPVS.TCPTimeout.Duration, "ipvs-tcp-timeout", 0, "without meaning")
	fs.DurationVar(&c.IPVS.TCPFinTimeout.Duration, "ipvs-tcpfin-timeout", 0, "without meaning")
	fs.DurationVar(&c.IPVS.UDPTimeout.Duration, "ipvs-udp-timeout", 0, "without meaning")
}

func (f *Flags) addConntrack(fs *pflag.FlagSet) {
	c := &f.config.Conntrack
	fs.Int32Var(c.MaxPerCore, "conntrack-max-per-core", *c.MaxPerCore, "connections to track for each CPU; 0: as now")
	fs.Int32Var(c.Min, "conntrack-min", *c.Min, "connections to track at least")
	fs.DurationVar(&c.TCPEstablishedTimeout.Duration, "conntrack-tcp-timeout-established", c.TCPEstablishedTimeout.Duration, "time-out of idle TCP connections; 0: as now")
	fs.DurationVar(&c.TCPCloseWaitTimeout.Duration, "conntrack-tcp-timeout-close-wait", c.TCPCloseWaitTimeout.Duration, "time-out of TCP connections in CLOSE_WAIT; 0: as now")
	fs.BoolVar(&c.TCPBeLiberal, "conntrack-tcp-be-liberal", false, "take packets out of a TCP connection's window")
	fs.DurationVar(&c.UDPTimeout.Duration, "conntrack-udp-timeout", 0, "time-out of UDP flows without an answer; 0: as now")
	fs.DurationVar(&c.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", 0, "time-out of UDP flows; 0: as now")
}

func (f *Flags) addLogging(fs *pflag.FlagSet) {
	l := &f.config.Logging
	fs.Uint32VarP(&l.Verbosity, "v", "v", 0, "verbosity; from 4 on, plans are logged")
	fs.StringVar(&f.vmodule, "vmodule", "", "without meaning")
	fs.StringVar(&l.Format, "logging-format", l.Format, "text or json")
	f.flush = fs.Duration("log-flush-frequency", 5*time.Second, "without meaning")
	for _, format := range []string{"text", "json"} {
		fs.Bool("log-"+format+"-split-stream", false, "without meaning")
		fs.String("log-"+format+"-info-buffer-size", "0", "without meaning")
	}
}

// Given reports whether the command line has a flag that only kube-proxy has, other than for its
// log: then Sluice is started in its place.
func (f *Flags) Given() bool {
	given := false
	f.own.VisitAll(func(flag *pflag.Flag) {
		given = given || flag.Changed && !slices.Contains(logging, flag.Name)
	})
	return given
}

// Loaded is a configuration with where it came from.
type Loaded struct {
	Config *Config
	Text   []byte   // of the file; nil without one
	Notes  []string // what was passed over, for people
}

// Load makes the configuration: that of the file, or else of the flags. With a file only some flags
// count, as with kube-proxy.
func (f *Flags) Load() (Loaded, error) {
	switch {
	case f.cleanup:
		return Loaded{}, errors.New("--cleanup: run 'sluice cleanup' to remove what Sluice programmed, or kube-proxy --cleanup for what kube-proxy did")
	case f.master != "":
		return Loaded{}, errors.New("--master: write the address into the kubeconfig file, as its cluster's server")
	}
	if f.File == "" {
		return f.fromFlags()
	}
	text, err := os.ReadFile(f.File)
	if err != nil {
		return Loaded{}, fmt.Errorf("read --config: %w", err)
	}
	c, odd, err := Decode(text)
	if err != nil {
		return Loaded{}, fmt.Errorf("--config %s: %w", f.File, err)
	}
	l := Loaded{Config: c, Text: text}
	if odd != nil {
		l.Notes = append(l.Notes, fmt.Sprintf("--config %s: %v", f.File, odd))
	}
	if passed := f.ignored(); len(passed) > 0 {
		l.Notes = append(l.Notes, "flags that do not count beside --config, as with kube-proxy: "+strings.Join(passed, ", "))
	}
	f.copyLogging(&c.Logging)
	return l, f.override(c)
}

// ignored returns the given flags that do not count beside a file.
func (f *Flags) ignored() []string {
	var names []string
	f.all.Visit(func(flag *pflag.Flag) {
		mine := f.own.Lookup(flag.Name) != nil || slices.Contains(shared, flag.Name)
		if mine && !slices.Contains(besideFile, flag.Name) && !slices.Contains(logging, flag.Name) {
			names = append(names, "--"+flag.Name)
		}
	})
	return names
}

// copyLogging has flags for the log count over the file.
func (f *Flags) copyLogging(l *Logging) {
	if f.all.Changed("v") {
		l.Verbosity = f.config.Logging.Verbosity
	}
	if f.all.Changed("logging-format") {
		l.Format = f.config.Logging.Format
	}
	if f.all.Changed("log-flush-frequency") {
		l.FlushFrequency = f.flush.String()
	}
	var modules []VModule
	for pair := range strings.SplitSeq(f.vmodule, ",") {
		pattern, level, _ := strings.Cut(pair, "=")
		if n, err := strconv.ParseUint(level, 10, 32); err == nil { // what is no level is as good as not there
			modules = append(modules, VModule{FilePattern: pattern, Verbosity: uint32(n)})
		}
	}
	l.VModule = append(modules, l.VModule...)
}

// override has --hostname-override count over the file.
func (f *Flags) override(c *Config) error {
	if f.hostname == "" {
		return nil
	}
	if c.HostnameOverride = strings.ToLower(strings.TrimSpace(f.hostname)); c.HostnameOverride == "" {
		return errors.New("--hostname-override: an empty name is none")
	}
	return nil
}

// fromFlags makes the configuration of the flags alone.
func (f *Flags) fromFlags() (Loaded, error) {
	c := f.config
	c.HealthzBindAddress = atPort(c.HealthzBindAddress, f.healthzPort)
	c.MetricsBindAddress = atPort(c.MetricsBindAddress, f.metricsPort)
	period, least, section := c.syncPeriods()
	*period, *least = c.IPTables.SyncPeriod, c.IPTables.MinSyncPeriod // the flags' defaults, whatever the mode
	if section == "nftables" {
		section = "iptables" // there are no flags of its own
	}
	if name := section + "-sync-period"; f.all.Changed(name) {
		period.Duration = *f.syncs[name]
	}
	if name := section + "-min-sync-period"; f.all.Changed(name) {
		least.Duration = *f.syncs[name]
	}
	for _, name := range shared {
		if flag := f.all.Lookup(name); flag != nil && flag.Changed {
			f.share(name, flag.Value.String())
		}
	}
	f.copyLogging(&c.Logging)
	return Loaded{Config: c}, f.override(c)
}

// share takes the value of a flag of the command.
func (f *Flags) share(name, value string) {
	c := f.config
	switch name {
	case "kubeconfig":
		c.ClientConnection.Kubeconfig = value
	case "cluster-cidr":
		c.ClusterCIDR = value
	case "masquerade-all":
		*c.masqueradeAll() = value == "true"
	case "ipvs-scheduler":
		c.IPVS.Scheduler = value
	case "nodeport-addresses":
		c.NodePortAddresses = []string{}
		if value != "" {
			c.NodePortAddresses = strings.Split(value, ",")
		}
	}
}

// atPort adds the port to an address that has none; port 0 switches the server off.
func atPort(address string, port int32) string {
	if port == 0 {
		return ""
	}
	return withPort(address, int(port))
}

// address sets a field to an address, which may have a port if ported is set. The field's default
// stays where the address is given as empty.
func address(field *string, ported bool) func(text string) error {
	return func(text string) error {
		host := text
		if text == "" {
			return nil
		}
		if _, err := parseAddr(text); err != nil && ported {
			if host, _, err = net.SplitHostPort(text); err != nil {
				return fmt.Errorf("%q is neither an IP address nor IP:port", text)
			}
		}
		if _, err := parseAddr(host); err != nil {
			return fmt.Errorf("%q is no IP address", host)
		}
		*field = text
		return nil
	}
}

// setGates takes a flag such as A=true,B=false, given once or several times.
func (c *Config) setGates(list string) error {
	if c.FeatureGates == nil {
		c.FeatureGates = map[string]bool{}
	}
	for pair := range strings.SplitSeq(list, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		if err != nil {
			return fmt.Errorf("%q is not NAME=true or NAME=false", pair)
		}
		c.FeatureGates[strings.TrimSpace(name)] = on
	}
	return nil
}
