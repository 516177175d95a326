package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"sluice.dev/sluice/internal/accelerate/established"
	"sluice.dev/sluice/internal/accelerate/sockets"
	"sluice.dev/sluice/internal/accelerate/xdp"
	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/bgp/child"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/driver"
	fabric "sluice.dev/sluice/internal/fabric/kernel"
	"sluice.dev/sluice/internal/foreign"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/pods/attach"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/services/kubeproxy"
	"sluice.dev/sluice/internal/services/takeover"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/source/kube"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/internal/upkeep"
)

type runOptions struct {
	nodeFlags
	kubeProxy  kubeproxy.Flags
	agent      agent.Config
	cni        cniOptions
	accelerate accelerators
	fabric     fabricFlags
	setSysctls bool
	logLevel   slog.Level
	logFormat  string
	passwords  string
	events     bool
	conditions bool
	taint      string
}

func newRunCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run (--manifests DIR | --kubeconfig FILE | --in-cluster | --config FILE)",
		Short: "Run the agent: keep the kernel in step with manifests or a Kubernetes API",
		Long: `Run the agent. It watches a folder of Kubernetes manifests, or a Kubernetes API, and keeps the
kernel of its network namespace in step. It needs CAP_NET_ADMIN. When the agent ends, what it
programmed stays and goes on working; 'sluice cleanup' removes it.

With --config, or any other flag that only kube-proxy has, the agent takes the role of kube-proxy:
it uses kube-proxy's defaults, serves kube-proxy's health and metrics addresses, and sets the
kernel parameters that kube-proxy sets.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd, o) },
	}
	o.register(cmd)
	o.kubeProxy.Register(cmd.Flags())
	o.cni.register(cmd.Flags())
	o.accelerate = *nodeAccelerators()
	o.accelerate.register(cmd.Flags())
	socketFlag(cmd, &o.agent.Socket)
	fl := cmd.Flags()
	fl.StringVar(&o.agent.MetricsAddress, "metrics-address", "127.0.0.1:10249", "address to serve Prometheus metrics on; '' to serve none")
	fl.StringVar(&o.agent.HealthzAddress, "healthz-address", "127.0.0.1:10256", "address to serve /healthz, /livez and /readyz on; '' to serve none")
	fl.DurationVar(&o.agent.AuditInterval, "audit-interval", 5*time.Minute, "interval between full comparisons with the kernel; whatever it is, a table that another program removes is back within a second, and single elements within a minute")
	o.fabric.register(fl, &o.compiler)
	fl.BoolVar(&o.compiler.Addresses, "service-addresses", false, "give Services of type LoadBalancer addresses from MetalLB's IPAddressPools, and announce them by ARP and NDP as its L2Advertisements say; with a Kubernetes API needs the right to patch services/status and to get, create and update leases")
	fl.StringVar(&o.compiler.LoadBalancerClass, "load-balancer-class", "", "with --service-addresses, `class` of the Services that get addresses (default: those without a class)")
	fl.BoolVar(&o.compiler.BGP, "bgp", false, "with --fabric: announce this node's pods and addresses of Services by BGP as Calico's BGPConfiguration and BGPPeers and MetalLB's BGPPeers say, and take the routes of peers; runs sluice-bgp, which has to be beside this program")
	fl.StringVar(&o.passwords, "bgp-passwords", "", "with --bgp: `folder` of the Secrets that BGP objects name, as Kubernetes mounts them: the password of key KEY in Secret NAME is in the file NAME/KEY")
	fl.Uint32Var(&o.compiler.BGPMaxRoutes, "bgp-max-routes", 1<<16, "with --bgp: how many routes of a family a peer may announce that its filters accept (0: any number), and 32 times as many with those that they reject; the session with one that announces more ends")
	fl.BoolVar(&o.setSysctls, "set-sysctls", true, "turn on forwarding if it is off, and set the parameters of connection tracking that --config names")
	fl.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "lowest `level` to log: debug, info, warn or error; debug shows every plan")
	fl.BoolVar(&o.events, "events", false, "report objects at fault as Events to the Kubernetes API; needs the right to create and patch events of events.k8s.io")
	fl.BoolVar(&o.conditions, "conditions", false, "report objects at fault as the condition sluice.dev/Accepted of Services and ClusterNetworkPolicies; needs the right to patch services/status and clusternetworkpolicies/status")
	fl.StringVar(&o.taint, "remove-taint", "", "take the taints of this `key` away from this node's Node whenever the agent is ready, so that a node can be made to wait for it; needs the right to patch nodes")
	fl.StringVar(&o.logFormat, "log-format", "text", "text or json")
	return cmd
}

func run(cmd *cobra.Command, o runOptions) error {
	proxy, err := o.takeProxyRole(cmd)
	if err != nil {
		return err
	}
	log, err := newLogger(cmd.ErrOrStderr(), o.logFormat, o.logLevel)
	if err != nil {
		return err
	}
	if proxy != nil {
		if done, err := proxy.once(&o, log); done {
			return err
		}
		proxy.tell(log)
		proxy.setOOMScore(log)
	}
	if err := o.checkObjects(); err != nil {
		return err
	}
	for flag, given := range map[string]bool{"--events": o.events, "--conditions": o.conditions} {
		if given && !o.kubeFlags.named() {
			return cli.Usage(errors.New(flag + " reports to a Kubernetes API: name one with --kubeconfig or --in-cluster"))
		}
	}
	if o.taint != "" {
		if !o.kubeFlags.named() {
			return cli.Usage(errors.New("--remove-taint writes to a Kubernetes API: name one with --kubeconfig or --in-cluster"))
		}
		if wrong := validation.IsQualifiedName(o.taint); len(wrong) > 0 {
			return cli.Usage(fmt.Errorf("--remove-taint %s: give the key of a taint, as in sluice.dev/agent-not-ready: %s", o.taint, wrong[0]))
		}
	}
	for flag, address := range map[string]string{"--metrics-address": o.agent.MetricsAddress, "--healthz-address": o.agent.HealthzAddress} {
		if _, _, err := net.SplitHostPort(address); address != "" && err != nil {
			return cli.Usage(fmt.Errorf("%s %s: give ADDRESS:PORT, as in 127.0.0.1:10249, or '' for none", flag, address))
		}
	}
	if o.agent.AuditInterval <= 0 {
		return cli.Usage(errors.New("--audit-interval must be longer than 0"))
	}
	if err := o.fabric.complete(&o.compiler); err != nil {
		return err
	}
	if o.compiler.BGP && !o.compiler.Fabric {
		return cli.Usage(errors.New("--bgp needs --fabric: routes of peers are a part of it"))
	}
	if o.passwords != "" && !o.compiler.BGP {
		return cli.Usage(errors.New("--bgp-passwords needs --bgp"))
	}
	if err := o.readable(); err != nil {
		return err
	}
	config, err := o.config()
	if err != nil {
		return err
	}
	mode, why, err := o.choose(cmd.Context())
	if err != nil {
		return privilege(err)
	}
	if why != "" {
		log.Info("mode chosen", "mode", mode.name, "reason", why)
	}
	config.ReservedPorts = append(config.ReservedPorts, listening(o.agent.MetricsAddress, o.agent.HealthzAddress)...)
	if config.Policy && o.unsupported.ignores() {
		log.Warn("policies that cannot be carried out as they are written have no effect (--unsupported=ignore-policy): what they would deny passes; 'sluice status' names them")
	}
	nsLock, err := lockNamespace(cmd.Context(), log)
	if err != nil {
		if cmd.Context().Err() != nil {
			return nil // a signal came while it waited
		}
		return err
	}
	defer nsLock.Release()
	var private [32]byte
	if o.fabric.encrypt {
		if private, err = nodeKey(keyPath(o.agent.Socket)); err != nil {
			return err
		}
		config.WireGuard = fabric.PublicKey(private)
	}
	if o.passwords != "" {
		config.Secret = passwordsIn(o.passwords)
	}
	options := o.options(log)
	if o.flowOffload {
		if options.Devices, err = link.WatchRouting(cmd.Context(), log); err != nil {
			return err
		}
	}
	here, err := netns.OpenPath("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer func() { _ = here.Close() }()
	o.record = sysctl.RecordPath(o.agent.Socket)
	base, err := o.openDriver(mode, options)
	if err != nil {
		return privilege(err)
	}
	served := base
	var atSockets *sockets.Driver // nil: none
	if o.accelerate.has(xdp.Drop) {
		accelerated, err := xdp.Open(base, xdp.Options{Log: log, Stages: xdp.Stages{Drop: true}})
		if err != nil {
			return privilege(err)
		}
		served, o.agent.Accelerators = accelerated, append(o.agent.Accelerators, accelerated.Status)
	} else if err := xdp.Remove(); err != nil {
		log.Warn("what an earlier agent left at interfaces could not be removed: 'sluice cleanup' removes it", "error", err)
	}
	if o.accelerate.has(sockets.Name) {
		atSockets = sockets.Open(served, log)
		served, o.agent.Accelerators = atSockets, append(o.agent.Accelerators, atSockets.Status)
	} else if err := sockets.Withdraw(); err != nil {
		log.Warn("what an earlier agent left at sockets could not be removed: 'sluice cleanup' removes it", "error", err)
	}
	if o.accelerate.has(established.Name) {
		accelerated := established.Open(served, log)
		served, o.agent.Accelerators = accelerated, append(o.agent.Accelerators, accelerated.Status)
	} else if err := established.Withdraw(); err != nil {
		log.Warn("programs of an earlier agent go on to pass packets on: 'sluice cleanup' removes them", "error", err)
	}
	can := base.Capabilities().Can
	if config.Policy && can&driver.Policy == 0 {
		log.Warn("network policy has no effect in this mode; 'sluice status' names the policies; --policy=false says that it is not wanted", "mode", mode.name)
	}
	c := o.agent
	defer func() { _ = c.Driver.Close() }()
	c.Driver = served
	if atSockets != nil {
		c.Sockets = atSockets
	}
	if !unprivileged() { // a proxy without rights has nothing in the kernel to look after
		d, err := upkeep.Open(served, options)
		if err != nil {
			return privilege(err)
		}
		c.Driver, c.FlowsCut, c.AwaitCuts, c.Flows = d, d.FlowsCut, d.AwaitCuts, d.Flows
		c.InStep = func(ctx context.Context) { o.replaceModes(ctx, here, mode, log) }
	}
	reader, err := link.Open()
	if err != nil {
		return err
	}
	defer reader.Close()
	config.Resolve = func(nextHop netip.Addr) (netip.Addr, string) {
		r, _ := reader.Route(nextHop)
		device, _ := reader.Name(r.Link)
		return r.Gateway, device
	}
	objects := store.New()
	c.Node, c.Version, c.Mode = config.Node, cli.Version(), mode.name
	c.Store, c.Source, c.Compiler = objects, o.source(objects, log), compile.New(config)
	c.OtherRules = func(ctx context.Context) (foreign.Rules, error) { return foreign.Read(ctx, here) }
	c.Lock, c.Contests, c.Log = nsLock, &contest.Board{}, log
	var a *agent.Agent
	if o.setSysctls {
		c.Prepare = func() {
			set := func() error {
				setSysctls(log, o, base.Capabilities().Offloader != nil)
				if proxy != nil {
					proxy.tune(log, &o)
				}
				return nil
			}
			if err := here.Do(set); err != nil {
				log.Warn("kernel parameters are not set", "error", err)
			}
			if mode.name != userspaceMode { // which passes nothing on
				f := &forwarding{families: a.Families, record: o.record, contests: c.Contests, node: c.Node, log: log}
				go f.keep(cmd.Context(), here)
			}
		}
	}
	c.KubeProxy = func() (runs bool) {
		err := here.Do(func() (err error) { runs, err = takeover.Running(os.Getpid()); return err })
		return err == nil && runs
	}
	var events *kube.Recorder
	if o.events {
		events = kube.NewRecorder(o.kubeFlags.api(false), config.Node, log)
		go events.Run(cmd.Context())
	}
	c.Report = o.reporter(cmd.Context(), events, objects, c.Source, log)
	if c.HostAddresses, err = link.WatchAddresses(cmd.Context(), log); err != nil {
		return err
	}
	c.Connect = func(ctx context.Context, to netip.AddrPort) error {
		return here.Do(func() error {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
			if err != nil {
				return err
			}
			return conn.Close()
		})
	}
	c.Route = func(addr netip.Addr) verdict.Way {
		r, _ := reader.Route(addr)
		way := verdict.Way{Device: r.Link, Own: r.Local}
		if r.Source.IsValid() {
			way.Sources = []netip.Addr{r.Source}
		}
		return way
	}
	c.Lost = (&routes{reader, here}).lost
	if config.Policy || config.BGP {
		if c.Links, err = link.WatchLinks(cmd.Context(), log); err != nil {
			return err
		}
		c.Reroute = func(device int, a netip.Addr) (bool, error) { return attach.Reroute(here, device, a) }
	}
	if mode.name != userspaceMode {
		c.Drops = readDrops(log)
	}
	if config.Fabric {
		release, err := openFabric(cmd.Context(), &c, private, log)
		if err != nil {
			return privilege(err)
		}
		defer release()
		o.publishKey(cmd.Context(), config.Node, config.WireGuard, objects, c.Contests, log)
	}
	if config.BGP {
		speaker, err := child.Find()
		if err != nil {
			return fmt.Errorf("--bgp: %w", err)
		}
		c.Speaker = child.New(speaker, log)
	}
	if config.Addresses {
		if c.Addresses, err = openAddresses(cmd.Context(), config.Node, &o, events, objects, c.Contests, log); err != nil {
			return err
		}
	}
	a = agent.New(c)
	o.runCNI(cmd.Context(), a, objects, log)
	o.runUntaint(cmd.Context(), a, objects, log)
	if proxy != nil {
		err = proxy.run(cmd.Context(), a)
	} else {
		err = a.Run(cmd.Context())
	}
	if cmd.Context().Err() != nil && c.InStep != nil {
		handOver(base, nsLock, here, log)
	}
	if read := c.Source.Status(); err == nil && !objects.Synced() && len(read.Issues) > 0 {
		return neverRead(read)
	}
	return privilege(err)
}

// neverRead is the error of an agent that has been ended before it could read its source once.
func neverRead(s source.Status) error {
	err := fmt.Errorf("%s could never be read; nothing was changed in the kernel", s.Where)
	for _, i := range s.Issues {
		err = fmt.Errorf("%w: %s", err, i)
	}
	return err
}

// reporter starts reporting faults to the API, as Events, too, if there is a recorder of them, and
// returns the function that takes them; nil: none are reported.
func (o *runOptions) reporter(ctx context.Context, events *kube.Recorder, objects *store.Store, src source.Source, log *slog.Logger) func([]model.Issue) {
	var reports []func([]model.Issue)
	if events != nil {
		reports = append(reports, events.Report)
	}
	if o.conditions {
		conditions := kube.NewConditions(o.kubeFlags.api(false), log)
		reports = append(reports, func(issues []model.Issue) {
			// An object that is not read yet is not known to be at fault.
			if objects.Synced() && len(src.Status().Unread) == 0 {
				conditions.Report(issues)
			}
		})
		go conditions.Run(ctx)
	}
	if len(reports) == 0 {
		return nil
	}
	return func(issues []model.Issue) {
		for _, report := range reports {
			report(issues)
		}
	}
}

// runUntaint has this node's taint taken away whenever the agent is ready, if it is to be.
func (o *runOptions) runUntaint(ctx context.Context, a *agent.Agent, objects *store.Store, log *slog.Logger) {
	if o.taint == "" {
		return
	}
	untaint := kube.NewUntaint(o.kubeFlags.api(false), a.Node, o.taint, log)
	go changeNode(ctx, untaint, a.Node, objects, a.Contests, func(n *model.Node) bool { return slices.Contains(n.Taints, o.taint) && a.Ready() })
}

// changeNode makes a change to a Node until ctx ends, whenever it is due.
func changeNode(ctx context.Context, change *kube.NodeChange, name string, objects *store.Store, contests *contest.Board, due func(*model.Node) bool) {
	change.Contests = contests
	change.Run(ctx, func() bool {
		node := objects.Node(name)
		return node != nil && due(node)
	})
}

// setSysctls lets the node forward. With offload, rules ask how many packets a connection has had,
// for which the kernel counts them: it is set here so that it is recorded. The agent is useful
// without, so failures are only logged.
func setSysctls(log *slog.Logger, o runOptions, offload bool) {
	ipv4, ipv6 := o.families()
	want := forwardingSysctls(log, ipv4, ipv6)
	if offload {
		want[sysctl.CountPackets] = "1"
	}
	if o.accelerate.has(established.Name) {
		maps.Copy(want, established.Sysctls)
	}
	applySysctls(log, sysctl.RecordPath(o.agent.Socket), want)
}

// forwardingSysctls let a machine forward; what cannot be had is logged.
func forwardingSysctls(log *slog.Logger, ipv4, ipv6 bool) map[string]string {
	want, err := sysctl.Needed(ipv4, ipv6)
	if err != nil {
		log.Warn("a kernel parameter does not have the value it needs", "error", err)
	}
	return want
}

// recording is held by who sets parameters, as they are recorded in one file.
var recording sync.Mutex

// applySysctls sets parameters; failures are only logged.
func applySysctls(log *slog.Logger, record string, want map[string]string) {
	if err := writeSysctls(log, record, want); err != nil {
		log.Warn("not all kernel parameters are set and recorded", "error", err)
	}
}

// writeSysctls sets parameters, and logs which it changed.
func writeSysctls(log *slog.Logger, record string, want map[string]string) error {
	recording.Lock()
	defer recording.Unlock()
	changes, err := sysctl.Set(record, want)
	after := "kernel parameter set; 'sluice cleanup' restores it"
	if errors.Is(err, sysctl.ErrNotNoted) {
		after = "kernel parameter set"
	}
	for _, c := range changes {
		log.Info(after, "parameter", c.Key, "value", c.Now, "was", c.Was)
	}
	return err
}

// families returns the address families in use: those of the CIDRs, or else those of the host's
// addresses.
func (f *nodeFlags) families() (ipv4, ipv6 bool) {
	for _, p := range slices.Concat(f.compiler.ClusterCIDRs, f.compiler.ServiceCIDRs) {
		ipv4, ipv6 = ipv4 || p.Addr().Is4(), ipv6 || p.Addr().Is6()
	}
	if ipv4 || ipv6 {
		return ipv4, ipv6
	}
	addrs, err := link.Here.HostAddresses()
	if err != nil {
		return true, false
	}
	for _, p := range addrs {
		ipv6 = ipv6 || p.Addr().Is6() && !p.Addr().IsLoopback()
	}
	return true, ipv6
}

func newLogger(w io.Writer, format string, level slog.Level) (*slog.Logger, error) {
	switch format {
	case "text":
		return cli.TextLog(w, level), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, cli.LogOptions(level))), nil
	}
	return nil, cli.Usage(fmt.Errorf("--log-format %s: choose text or json", format))
}
