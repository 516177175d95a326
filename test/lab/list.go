package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Summary is a lab's line in a list. Its state is "changing" while a command brings it up or takes
// it down. Otherwise it is "up" if all of its processes run, "incomplete" if some do and can be
// restarted, "dead" if it can only be replaced, and "unfinished" if it never came up, or nobody can
// read what it is.
type Summary struct {
	Name         string     `json:"name"`
	State        string     `json:"state"`
	Nodes        int        `json:"nodes"`
	Pods         int        `json:"pods"`
	Since        *time.Time `json:"since,omitempty"`
	Agents       string     `json:"agents"`       // "running", "2 of 3 running", "none" or "kube-proxy"
	ControlPlane string     `json:"controlPlane"` // "Kubernetes", or "none" where the lab itself plays it
}

// Labs is a list of labs.
type Labs []Summary

// List returns the names of the labs on this machine, including dead ones, sorted.
func List() ([]string, error) {
	entries, err := os.ReadDir(Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// Summaries describes the labs on this machine, sorted by name. Pods of an API that does not answer
// are those of the last time that it was read.
func Summaries(ctx context.Context) (Labs, error) {
	names, err := List()
	if err != nil {
		return nil, err
	}
	labs := Labs{} // in JSON never null
	for _, name := range names {
		s := Summary{Name: name, State: "unfinished", Agents: "none", ControlPlane: "none"}
		if l, err := Open(name, nil); err == nil {
			s = l.summary(ctx)
		}
		if locked(name) {
			s.State = "changing"
		}
		labs = append(labs, s)
	}
	return labs, nil
}

// summaryTimeout is the time-out for one lab's API.
const summaryTimeout = 5 * time.Second

func (l *Lab) summary(ctx context.Context) Summary {
	ctx, cancel := context.WithTimeout(ctx, summaryTimeout)
	defer cancel()
	_ = l.refresh(ctx) // otherwise the last reading stands
	s := Summary{
		Name: l.Name, State: "dead", Nodes: len(l.Cluster.Nodes), Pods: len(l.Cluster.Pods), Since: &l.Cluster.Created,
		Agents: l.agentsState(), ControlPlane: "none",
	}
	if l.Kubernetes != nil {
		s.ControlPlane = "Kubernetes"
	}
	switch {
	case l.alive():
		s.State = "up"
	case l.Kubernetes != nil && l.someAlive():
		s.State = "incomplete"
	}
	return s
}

// agentsState says how many agents run, or what serves the nodes in their place.
func (l *Lab) agentsState() string {
	if l.Kubernetes != nil && l.Kubernetes.Proxy != "" {
		return kubeProxy
	}
	var started, running int
	for _, n := range l.Cluster.Nodes {
		p := l.agentProcess(n.Name)
		if p.PID != 0 || l.installed() {
			started++
		}
		if p.Alive() {
			running++
		}
	}
	switch {
	case started == 0:
		return "none"
	case running == started:
		return "running"
	}
	return fmt.Sprintf("%d of %d running", running, started)
}

// Table writes the list for people, its columns separated by tabs.
func (labs Labs) Table(w io.Writer) {
	if len(labs) == 0 {
		_, _ = fmt.Fprintln(w, "there is no lab on this machine; 'sluice lab up' starts one")
		return
	}
	_, _ = fmt.Fprintln(w, "LAB\tSTATE\tNODES\tPODS\tSINCE\tAGENTS\tCONTROL PLANE")
	for _, s := range labs {
		since := "-"
		if s.Since != nil {
			since = s.Since.Local().Format(time.DateTime)
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n", s.Name, s.State, s.Nodes, s.Pods, since, s.Agents, s.ControlPlane)
	}
}
