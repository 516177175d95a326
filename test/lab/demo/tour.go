package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/load"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/probe"
)

// Tour is how the story of a lab's application is told.
type Tour struct {
	Took     time.Duration // to bring up the lab
	Requests int           // of the check, from each source through each address
	// Only check all services, and tell the outcome in a few lines.
	CheckOnly bool
	// Tables, if set, writes the details: the lab's state, and where each request of the check
	// went.
	Tables func(report *probe.Report) error
	Next   []Hint // what to type next
}

// Tell tells the story of a lab's application; the caller has begun its first step, which brought
// up the lab. It returns an error if anything is not as it should be, after having said what. The
// lab is as it was when it returns.
func (o Tour) Tell(ctx context.Context, t *Teller, l *lab.Lab) error {
	s := &story{Teller: t, name: l.Name, lab: l}
	s.cluster(o.Took)
	if !o.CheckOnly {
		if err := s.tour(ctx); err != nil {
			return err
		}
	}
	var report *probe.Report
	s.step(ctx, "check", func(ctx context.Context) (err error) {
		report, err = s.check(ctx, o.Requests)
		return err
	})
	if report != nil && o.Tables != nil {
		if err := o.Tables(report); err != nil {
			return err
		}
	}
	if !o.CheckOnly {
		s.next(ctx, o.Next)
	}
	return s.end(ctx)
}

// tour tells of single requests, of policy, and of agents that die.
func (s *story) tour(ctx context.Context) error {
	pairs, err := s.lab.PairTries(ctx)
	if err != nil {
		return err
	}
	request := followed(s.lab.Cluster, pairs)
	if request != nil {
		s.step(ctx, "request", func(context.Context) error { return s.follow(*request) })
	}
	if len(s.lab.Cluster.Policies) > 0 {
		s.step(ctx, "policy", func(ctx context.Context) error { return s.reach(ctx, pairs, true) })
	}
	agents := agents(ctx, s.lab)
	if len(agents) == 0 {
		return nil
	}
	no := denied(s.lab.Cluster, pairs)
	if no != nil {
		s.step(ctx, "denied", func(ctx context.Context) error { _, err := s.deny(ctx, no); return err })
		if len(no.labels) > 0 {
			s.step(ctx, "label", func(ctx context.Context) error { return s.relabel(ctx, no) })
		}
	}
	if request != nil {
		s.step(ctx, "crash", func(ctx context.Context) error { return s.crash(ctx, *request, no) })
	}
	return nil
}

// relabel gives a denied client the labels that it lacks, sends its request again, and takes them
// back.
func (s *story) relabel(ctx context.Context, d *denial) (err error) {
	var old map[string]string
	defer func() {
		if old != nil {
			_, undo := s.label(ctx, d.Source.Name, old)
			err = errors.Join(err, undo)
		}
	}()
	took, err := s.measure(ctx, func() (err error) {
		old, err = s.label(ctx, d.Source.Name, d.labels)
		return err
	})
	if err != nil {
		return err
	}
	a, err := ask(d.NetNS, d.To, answerTime)
	if err != nil {
		return fmt.Errorf("%s asked %s, which policy %s/%s allows by now: %w", d.Source.Name, port(d.Frontend), d.policy.Namespace, d.policy.Name, err)
	}
	var texts []string
	for _, k := range slices.Sorted(maps.Keys(d.labels)) {
		texts = append(texts, k+"="+d.labels[k])
	}
	s.Say("%s gets the label %s, which policy %s/%s lets in", d.Source.Name, strings.Join(texts, ", "), d.policy.Namespace, d.policy.Name)
	s.Good("in the kernel after %s from reading it", took)
	s.Good("the same request is answered by %s/%s", a.Namespace, a.Pod)
	return nil
}

// label sets labels of a pod, those without a value to nothing, waits until all agents have
// programmed it, and returns the former ones.
func (s *story) label(ctx context.Context, pod string, labels map[string]string) (old map[string]string, err error) {
	old = map[string]string{}
	for _, p := range s.lab.Cluster.Pods {
		for k := range labels {
			if p.Namespace+"/"+p.Name == pod {
				old[k] = p.Labels[k]
			}
		}
	}
	if s.lab.Kubernetes != nil {
		return old, s.labelAPI(ctx, pod, labels)
	}
	err = s.lab.Change(ctx, func(c *plan.Cluster) error {
		i := slices.IndexFunc(c.Pods, func(p *corev1.Pod) bool { return p.Namespace+"/"+p.Name == pod })
		if i < 0 {
			return fmt.Errorf("label pod %s: the lab has no such pod", pod)
		}
		c.Pods[i].Labels = labelled(c.Pods[i].Labels, labels)
		maps.DeleteFunc(c.Pods[i].Labels, func(_, v string) bool { return v == "" })
		return nil
	})
	if err == nil {
		err = s.lab.Sync(ctx)
	}
	return old, err
}

// labelAPI is label in a lab that has a control plane.
func (s *story) labelAPI(ctx context.Context, pod string, labels map[string]string) error {
	namespace, name, _ := strings.Cut(pod, "/")
	args := []string{"label", "pod", "-n", namespace, name, "--overwrite"}
	for k, v := range labels {
		if v == "" {
			args = append(args, k+"-")
		} else {
			args = append(args, k+"="+v)
		}
	}
	err := s.lab.Plane(func(p *control.Plane) error {
		if out, err := p.Kubectl(args...); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.lab.Settle(ctx)
}

// These are the numbers of requests during a crash: before the agents die, while none runs, and in
// all at least.
const (
	crashBefore  = 500
	crashWithout = 1000
	crashInAll   = 2000
)

// crash kills all agents while requests go on, and starts them again.
func (s *story) crash(ctx context.Context, t probe.Try, no *denial) error {
	s.Progress("killing the agents while requests go on")
	l, err := load.Start(load.Config{Routes: []load.Route{{From: t.NetNS, To: t.To}}})
	if err != nil {
		return err
	}
	defer l.Stop()
	l.More(crashBefore)
	nodes := s.lab.Cluster.Nodes
	for _, n := range nodes {
		if err := s.lab.KillProxy(n.Name); err != nil {
			return err
		}
	}
	var let error
	also := ""
	if no != nil {
		let, also = isDenied(no.Try), ", and what is denied stayed denied"
	}
	l.More(crashWithout)
	begin := time.Now()
	for _, n := range nodes {
		if err := s.lab.StartProxy(n.Name); err != nil {
			return err
		}
	}
	if err := s.lab.Sync(ctx); err != nil {
		return err
	}
	took := time.Since(begin)
	l.More(crashInAll - l.Sent())
	sent, err := l.Outcome()
	if err != nil {
		err = fmt.Errorf("all agents were killed while %s sent requests to %s: %w", t.Source.Name, port(t.Frontend), err)
	}
	if err := errors.Join(let, err); err != nil {
		return err
	}
	s.Say("all %s killed while %s sends requests to %s:", model.Count(len(nodes), "agent"), t.Source.Name, port(t.Frontend))
	s.Good("0 of %s requests failed%s", thousands(sent), also)
	changed := 0
	for node, c := range agents(ctx, s.lab) {
		status, err := c.Status(ctx)
		if err != nil {
			return fmt.Errorf("ask the agent of %s: %w", node, err)
		}
		if status.LastApply != nil {
			changed += status.LastApply.Operations
		}
	}
	s.Say("new agents took over what is in the kernel after %s, with %s", span(took), model.Count(changed, "change"))
	return nil
}

// check sends requests through all services, from everywhere.
func (s *story) check(ctx context.Context, requests int) (*probe.Report, error) {
	s.Progress("sending requests through every address of every service")
	report, err := s.lab.Probe(ctx, requests, nil)
	if err != nil {
		return nil, err
	}
	if report.Failed > 0 {
		return report, errors.New(strings.Join(append(report.Failures(), report.Summary()), "\n"))
	}
	s.Say("%s requests through every address of every service, from pods, nodes and outside:", thousands(report.Requests))
	s.Good("%s (%.1f s)", report.Outcome(), report.Took.Seconds())
	if report.Pairs != nil {
		_, pairs := drawn(report.Pairs)
		s.Good("%s", pairs.Summary())
	}
	return report, nil
}
