package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/internal/services/kubeproxy"
)

// proxyRole is the role of kube-proxy on a node, with its configuration.
type proxyRole struct {
	kubeproxy.Settings
	loaded kubeproxy.Loaded
	file   string // path; "" without one
}

// takeProxyRole reads kube-proxy's configuration and sets the options accordingly, unless our own
// flags set them. It returns nil if the command line has no flag of kube-proxy's.
func (o *runOptions) takeProxyRole(cmd *cobra.Command) (*proxyRole, error) {
	if !o.kubeProxy.Given() {
		return nil, nil
	}
	loaded, err := o.kubeProxy.Load()
	if err != nil {
		return nil, cli.Usage(err)
	}
	settings, err := loaded.Config.Settings(o.mode)
	if err != nil {
		what := "flags of kube-proxy"
		if o.kubeProxy.File != "" {
			what = "--config " + o.kubeProxy.File
		}
		return nil, cli.Usage(fmt.Errorf("%s: %w", what, err))
	}
	s := &proxyRole{settings, loaded, o.kubeProxy.File}
	if node := o.compiler.Node; node != "" && s.Node != "" && nodeName(node) != s.Node {
		return nil, cli.Usage(fmt.Errorf("--node %s, but kube-proxy's configuration names the node %s: leave out one of them", node, s.Node))
	}
	return s, o.follow(s, func(flag string) bool { return cmd.Flags().Changed(flag) })
}

// follow sets options from kube-proxy's configuration.
func (o *runOptions) follow(s *proxyRole, given func(flag string) bool) (err error) {
	if o.manifests == "" && !o.inCluster {
		o.kubeconfig, o.inCluster = s.Kubeconfig, s.Kubeconfig == ""
	}
	c := &o.compiler
	if c.Node = cmp.Or(c.Node, s.Node); c.Node == "" {
		if c.Node, err = hostName("--hostname-override"); err != nil {
			return err
		}
	}
	c.ClusterCIDRs, c.ClusterUnknown, c.MasqueradeAll = s.ClusterCIDRs, !s.NodeCIDRs, s.MasqueradeAll
	c.NodePortAddresses, c.NodePortPrimary, c.PrimaryAddr = s.NodePortAddresses, s.NodePortPrimary, s.PrimaryAddr
	o.agent.MustServe, o.agent.UnhealthyAfter, o.agent.NodeNeeded = s.MustServe, s.UnhealthyAfter, true
	o.agent.Pages = kubeproxy.Pages(s.loaded.Config, s.Profiling)
	if !given("policy") {
		c.Policy = false // kube-proxy has no policy, and may not have the right to read it
	}
	if scheduler := s.loaded.Config.IPVS.Scheduler; !given("ipvs-scheduler") && scheduler != "" {
		o.scheduler = scheduler
	}
	if !given("metrics-address") {
		o.agent.MetricsAddress = s.MetricsAddress
	}
	if !given("healthz-address") {
		o.agent.HealthzAddress = s.HealthzAddress
	}
	if !given("log-level") && s.Debug {
		o.logLevel = slog.LevelDebug
	}
	if !given("log-format") && s.LogJSON {
		o.logFormat = "json"
	}
	return nil
}

// tell logs which settings have another effect here than the configuration asks for.
func (s *proxyRole) tell(log *slog.Logger) {
	log.Info("taking kube-proxy's place", "config", s.file, "mode", s.loaded.Config.Mode, "detectLocalMode", s.loaded.Config.DetectLocalMode)
	for _, note := range s.loaded.Notes {
		log.Warn("configuration of kube-proxy", "note", note)
	}
	for _, note := range s.Notes {
		log.Info("configuration of kube-proxy", "note", note)
	}
}

// tune sets the same parameters of connection tracking as kube-proxy. Failures are only logged: a
// container may not set the machine's parameters.
func (s *proxyRole) tune(log *slog.Logger, o *runOptions) {
	cpus, err := kubeproxy.CPUs()
	if err != nil {
		log.Warn("the limit of tracked connections stays as it is", "error", err)
	}
	buckets, _ := sysctl.Number(sysctl.TrackedBuckets) // 0 if it is not known
	applySysctls(log, sysctl.RecordPath(o.agent.Socket), s.Conntrack.Sysctls(cpus, buckets))
}

// setOOMScore sets the process's OOM score as kube-proxy does; a failure is only logged.
func (s *proxyRole) setOOMScore(log *slog.Logger) {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(s.OOMScoreAdj)), 0); err != nil {
		log.Info("oomScoreAdj is not set", "value", s.OOMScoreAdj, "error", err)
	}
}

// once does what --write-config-to or --init-only asks for, and reports whether that was all.
func (s *proxyRole) once(o *runOptions, log *slog.Logger) (done bool, err error) {
	switch {
	case o.kubeProxy.WriteTo != "":
		return true, s.writeConfig(o.kubeProxy.WriteTo)
	case o.kubeProxy.InitOnly:
		if o.setSysctls {
			setSysctls(log, *o, false)
			s.tune(log, o)
		}
		s.setOOMScore(log)
		return true, nil
	}
	return false, nil
}

// writeConfig writes the resulting configuration, for --write-config-to.
func (s *proxyRole) writeConfig(path string) error {
	text, err := s.loaded.Config.Encode()
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, text, 0o666); err != nil {
		return fmt.Errorf("write --write-config-to: %w", err)
	}
	return nil
}

// run runs the agent until ctx ends or the configuration file changes. A change is an error, as in
// kube-proxy: the service manager starts the process again.
func (s *proxyRole) run(ctx context.Context, a *agent.Agent) error {
	if s.file == "" {
		return a.Run(ctx)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() { stop(kubeproxy.Watch(ctx, s.file, s.loaded.Text)) }()
	err := a.Run(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, kubeproxy.ErrChanged) {
		return errors.Join(err, cause)
	}
	return err
}
