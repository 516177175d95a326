// Package suite runs the tests of others, unmodified, against a lab: Kubernetes' own end-to-end
// tests of networks, the conformance tests of ClusterNetworkPolicy, and MetalLB's tests.
package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/lab/build"
	"sluice.dev/sluice/test/netns"
)

// A Set is a choice of tests.
type Set struct {
	Name  string
	About string
	Of    *Suite // nil: Kubernetes
	Focus string // a regular expression of the tests' titles
	Skip  string // another, of those that are left out; "" for none
	Nodes int    // that they need at least
	CRDs  bool   // whether they need the kinds that Kubernetes itself does not have
	// Flags are the agents' that they need. Such tests are of Sluice alone, in pods.
	Flags []string
	Near  bool // they run on a host of the nodes' network, not behind it
}

// Sets are those that there are.
var Sets = []Set{
	{Name: "conformance", About: "what every cluster must do of networks: 47 tests", Focus: network + `.*\[Conformance\]`, Nodes: 2},
	{Name: "netpol", About: "NetworkPolicies: 49 tests", Focus: network + ` Netpol`, Nodes: 3},
	{Name: "sig-network", About: "all tests of networks: 249", Focus: network, Nodes: 6},
	{Name: "cluster-network-policy", About: "network-policy-api's conformance of ClusterNetworkPolicy: 28 tests", Of: clusterPolicies, Focus: "CNP", Nodes: 2, CRDs: true},
	{Name: "metallb", About: "MetalLB's of layer 2 and BGP, without those of its own parts: 49 tests", Of: metalLB, Focus: metalLBFocus, Skip: metalLBOwn,
		Nodes: 3, CRDs: true, Flags: []string{"--service-addresses", "--bgp", "--events"}, Near: true},
	{Name: "smoke", About: "conformance and a few of each other kind", Focus: network + ` .*(\[Conformance\]|` + strings.Join(smoke, "|") + `)`, Nodes: 3},
}

const network = `\[sig-network\]`

// smoke are parts of the titles of tests that are unlike each other, and unlike those of
// Conformance.
var smoke = []string{
	`Conntrack should be able to preserve UDP traffic when server pod cycles for a NodePort service`,
	`\[Feature:IPv6DualStack\] should create service with ipv4,v6 cluster ip`,
	`\[Feature:IPv6DualStack\] Granular Checks: Services Secondary IP Family \[LinuxOnly\] should function for node-Service: udp`,
	`Netpol NetworkPolicy between server and client should support a 'default-deny-ingress' policy`,
	`Netpol .* NetworkPolicy between server and client using SCTP should enforce policy based on Ports`,
	`Networking Granular Checks: Services should function for multiple endpoint-Services with same selector`,
	`Networking Granular Checks: Services should function for pod-Service: sctp`,
	`Networking should recreate its iptables rules if they are deleted`,
	`Services should allow pods to hairpin back to themselves through services`,
	`Services should be rejected when no endpoints exist`,
	`Services should fallback to local terminating endpoints when there are no ready endpoints with externalTrafficPolicy=Local`,
	`Services should implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes`,
	`Services should preserve source pod IP for traffic thru service cluster IP`,
	`Services should respect internalTrafficPolicy=Local Pod to Pod`,
}

// A Suite is what somebody's tests are made of, and how they are run.
type Suite struct {
	programs build.Set
	// prepare, which may be nil, prepares the run's folder and the cluster.
	prepare func(context.Context, Config) error
	// command is what runs the tests of a set, in the run's folder; env are further variables for
	// it.
	command func(Config) []string
	env     func(Config) []string
	// count tells how many tests have ended, from what the command prints.
	count func(out io.Reader, say func(Counts))
	// read reads the tests' outcome from the run's folder, once the command has ended.
	read func(dir string) (*Report, error)
}

// suite is that of the set.
func (s Set) suite() *Suite { return cmp.Or(s.Of, kubernetes) }

// Build builds what runs the set's tests, once: that takes some minutes. It is as control.Build.
func (s Set) Build(ctx context.Context, say func(string)) (bin string, err error) {
	return s.suite().programs.Build(ctx, say)
}

// outputFile is the file of a run's folder that has all that the tests print.
const outputFile = "output.log"

// Config is for one run.
type Config struct {
	Set
	DataPlane  string    // the name of one of DataPlanes
	Bin        string    // of the tests, as from Set.Build
	Kubectl    string    // a program
	Kubeconfig string    // of the administrator
	NetNS      *netns.NS // to run in: it reaches the API, the nodes and the addresses of services
	SSHKey     string    // the file of a private key with which root may run commands on the nodes
	Runtime    []string  // the command that stands in for a container runtime
	Dir        string    // for reports, and the tests' output; it exists
	Procs      int       // number of processes that tests are spread over; those marked Serial run alone
	Progress   func(Counts)
}

// Counts are numbers of tests that have ended.
type Counts struct{ Passed, Failed int }

// Run runs the tests of a set. The error says why they could not be run; failed tests are in the
// report.
func Run(ctx context.Context, c Config) (*Report, error) {
	s := c.suite()
	if s.prepare != nil {
		if err := s.prepare(ctx, c); err != nil {
			return nil, fmt.Errorf("prepare the tests: %w", err)
		}
	}
	args := s.command(c)
	begin := time.Now()
	out, err := os.Create(filepath.Join(c.Dir, outputFile))
	if err != nil {
		return nil, fmt.Errorf("run the tests: %w", err)
	}
	defer out.Close()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = c.Dir, append(os.Environ(), "KUBECONFIG="+c.Kubeconfig)
	if s.env != nil {
		cmd.Env = append(cmd.Env, s.env(c)...)
	}
	// The cluster goes, too: there is nothing to clean up in it.
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	var reading sync.WaitGroup
	reading.Go(func() { s.count(io.TeeReader(read, out), c.Progress) })
	if err := c.NetNS.Start(cmd); err != nil {
		return nil, errors.Join(fmt.Errorf("run the tests: %w", err), write.Close())
	}
	runErr := cmd.Wait()
	_ = write.Close() // it never fails
	reading.Wait()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("run the tests: %w", context.Cause(ctx))
	}
	r, err := s.read(c.Dir)
	if err != nil { // failed tests are in it
		return nil, fmt.Errorf("run the tests: %w; %w; their output is in %s", runErr, err, out.Name())
	}
	r.Set, r.DataPlane = c.Name, c.DataPlane
	r.finish()
	if runErr != nil && r.Count(Failed) == 0 { // a crash, for one
		return nil, fmt.Errorf("run the tests: they have not come to their end: %w; their output is in %s", runErr, out.Name())
	}
	r.Took = cmp.Or(r.Took, time.Since(begin))
	return r, nil
}
