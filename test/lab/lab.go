// Package lab builds a cluster out of network namespaces on one machine: nodes joined by an
// underlay, a client host outside, pods with namespaces and addresses of their own, a small server
// behind every container port, and one agent on each node. The lab itself plays the control plane
// (package plan) and writes what a cluster's API would contain into a folder that the agents watch.
//
// Everything of a lab is in named network namespaces sluice-lab-NAME-… and in one folder below Dir.
// Nothing is added to the root namespace, so labs affect neither each other nor the host.
package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/process"
	"sluice.dev/sluice/test/lab/sandbox"
)

// Dir contains the folders of all labs.
const Dir = "/run/sluice/lab"

// Config describes the lab to build.
type Config struct {
	Name    string // lower-case letters and digits, at most 20
	Nodes   int
	Objects *plan.Objects
	// Kubernetes, if set, makes the lab run a real control plane. Clients of its API then create
	// the objects.
	Kubernetes *Kubernetes
	// Executable is the sluice-lab binary, for the pods' servers (`sluice-lab lab serve`) and the
	// lab's other own processes.
	Executable string
	Fabric     plan.Fabric
	// Sluice is the sluice binary, for agents and commands on the nodes. The CNI plugin is beside
	// it.
	Sluice string
	// CNI is a network configuration, a conflist, for the pods' network instead of the lab's own.
	// Its plugins are beside Sluice, or where Linux distributions and Kubernetes put them.
	CNI        string
	Agent      *Agent       // nil: no agents, another program serves the nodes
	AgentFlags []string     // further flags of the agents
	Progress   func(string) // reports progress; may be nil
	Transient  bool         // the lab counts as dead, and may be replaced, once this process has ended
}

// Lab is a running lab. Its methods are not safe for concurrent use.
type Lab struct {
	Name    string
	Cluster *plan.Cluster // read-only; change it through Change

	// Warnings are what does not work as the manifests say, as this process has found it. Those of
	// the plan are in Cluster.Notes, too.
	Warnings []string `json:"-"`

	Kubernetes *Kubernetes `json:",omitempty"`

	Sluice     string   // see Config
	CNI        string   `json:",omitempty"` // see Config
	AgentFlags []string `json:",omitempty"` // see Config

	Owner *process.Process `json:",omitempty"` // the process that owns a transient lab

	agent      *Agent
	progress   func(string)
	namespaces []*corev1.Namespace // of the lab's first objects
	unplaced   []*corev1.Pod       // those in the API that no node runs yet
}

var validName = regexp.MustCompile(`^[a-z0-9]{1,20}$`)

func checkName(name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("lab name %q: use 1 to 20 lower-case letters and digits", name)
	}
	return nil
}

// Up builds a lab and returns once all pods are served and all agents are in sync. A dead lab of
// the same name, unfinished or with a lost process, is removed first; a running one is an error. If
// Up fails or ctx ends, nothing of the lab remains.
func Up(ctx context.Context, cfg Config) (*Lab, error) {
	release, err := lockLab(cfg.Name)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := replace(cfg.Name); err != nil {
		return nil, err
	}
	size := plan.Size{Nodes: cfg.Nodes, Fabric: cfg.Fabric}
	c, err := plan.New(size, cfg.Objects, time.Now())
	if err != nil {
		return nil, err
	}
	namespaces := c.Namespaces
	if cfg.Kubernetes != nil {
		if c, err = plan.New(size, &plan.Objects{}, time.Now()); err != nil {
			return nil, err
		}
	}
	l := &Lab{Name: cfg.Name, Cluster: c, Warnings: slices.Clone(c.Notes), Kubernetes: cfg.Kubernetes, Sluice: cfg.Sluice, CNI: cfg.CNI, AgentFlags: cfg.AgentFlags, agent: cfg.Agent, progress: cfg.Progress, namespaces: namespaces}
	if l.CNI != "" {
		if err := sandbox.Check(ctx, l.sandboxConfig("")); err != nil {
			return nil, fmt.Errorf("bring up lab %s: %w", cfg.Name, err)
		}
	}
	if cfg.Transient {
		self := process.Self()
		l.Owner = &self
	}
	if err := l.build(ctx, cfg.Executable); err != nil {
		return nil, errors.Join(fmt.Errorf("bring up lab %s: %w", cfg.Name, err), remove(cfg.Name))
	}
	return l, nil
}

// replace removes a dead lab of that name.
func replace(name string) error {
	old, err := Open(name, nil)
	switch {
	case err != nil:
	case old.alive():
		return fmt.Errorf("bring up lab %s: it is up already; take it down with 'sluice lab down --name %s', or choose another --name", name, name)
	case old.Kubernetes != nil && old.Owner == nil && old.someAlive(): // it contains somebody's work
		return fmt.Errorf("bring up lab %s: it is up, though %s; 'sluice lab status --name %s' says what to do about that, 'sluice lab down --name %s' takes it down", name, firstLine(old.died()), name, name)
	}
	return remove(name)
}

func (l *Lab) build(ctx context.Context, exe string) error {
	l.report("building the network: %s", model.Count(len(l.Cluster.Nodes), "node"))
	for _, dir := range []string{l.manifests(), l.path("hosts")} {
		if err := makeFolder(dir); err != nil {
			return fmt.Errorf("create lab folder: %w", err)
		}
	}
	if err := l.buildNetwork(ctx); err != nil {
		return err
	}
	if l.Kubernetes != nil {
		return l.buildKubernetes(ctx, exe)
	}
	for i := range l.Cluster.Nodes {
		if err := l.startServer(&l.Cluster.Nodes[i], exe); err != nil {
			return err
		}
	}
	l.report("starting %s", model.Count(len(l.Cluster.Pods), "pod"))
	if err := l.converge(ctx); err != nil {
		return err
	}
	if l.agent != nil {
		l.report("starting %s and waiting for them to program %s", model.Count(len(l.Cluster.Nodes), "agent"), model.Count(len(l.Cluster.Services), "service"))
		for i := range l.Cluster.Nodes {
			if err := l.startAgent(&l.Cluster.Nodes[i]); err != nil {
				return err
			}
		}
		if err := l.Sync(ctx); err != nil {
			return err
		}
	}
	return l.save()
}

// makeFolder makes a folder of a lab. Another lab that ends may remove the folder of all labs
// at the same time, as long as it is empty.
func makeFolder(dir string) error {
	err := os.MkdirAll(dir, 0o755)
	for range 100 {
		if !errors.Is(err, os.ErrNotExist) {
			break
		}
		err = os.MkdirAll(dir, 0o755)
	}
	return err
}

// Change changes the cluster's plan, with its methods Scale and Mark, and brings pods, servers and
// the agents' folder in line. Removed pods end at once: for a graceful end, first mark them
// terminating. The agents follow on their own; Sync waits for them.
func (l *Lab) Change(ctx context.Context, change func(*plan.Cluster) error) error {
	if l.Kubernetes != nil {
		return fmt.Errorf("change lab %s: its control plane decides what runs in it", l.Name)
	}
	if err := change(l.Cluster); err != nil {
		return err
	}
	if err := l.converge(ctx); err != nil {
		return fmt.Errorf("change lab %s: %w", l.Name, err)
	}
	return l.save()
}

// Open finds a lab that is or was running. agent may be nil if nothing will call Sync.
func Open(name string, agent *Agent) (*Lab, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	l := &Lab{Name: name, agent: agent}
	data, err := os.ReadFile(l.path("lab.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("open lab %s: there is none; start it with 'sluice lab up --name %s'", name, name)
	}
	if err == nil {
		err = json.Unmarshal(data, l)
	}
	if err != nil {
		return nil, fmt.Errorf("open lab %s: %w", name, err)
	}
	return l, nil
}

// save writes the file that marks the lab as complete.
func (l *Lab) save() error {
	data, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("save lab: %w", err)
	}
	return l.write(l.path("lab.json"), data)
}

// path returns the path of a file in the lab's folder.
func (l *Lab) path(elem ...string) string {
	return filepath.Join(append([]string{Dir, l.Name}, elem...)...)
}

// manifests is the folder that the agents watch.
func (l *Lab) manifests() string { return l.path("manifests") }

func (l *Lab) report(format string, args ...any) {
	if l.progress != nil {
		l.progress(fmt.Sprintf(format, args...))
	}
}

// warn adds a warning, without duplicates: the agents of all nodes tend to report the same.
func (l *Lab) warn(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(l.Warnings, text) {
		l.Warnings = append(l.Warnings, text)
	}
}
