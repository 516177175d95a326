package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/echo"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/probe"
)

// story is a story of a lab, and which of its steps failed.
type story struct {
	*Teller
	name   string   // of the lab
	lab    *lab.Lab // nil in that of a balancer
	failed []string
}

// step does one step. If it fails, it says why, and the story goes on unless ctx has ended.
func (s *story) step(ctx context.Context, name string, do func(context.Context) error) {
	if ctx.Err() != nil {
		return
	}
	s.Begin(name)
	err := do(ctx)
	switch {
	case ctx.Err() != nil:
		s.Bad("interrupted")
	case err != nil:
		s.failed = append(s.failed, name)
		for line := range strings.Lines(err.Error()) {
			s.Bad("FAILED: %s", model.Printable(strings.TrimSpace(line)))
		}
	}
}

// Hint is what to type next, and what for.
type Hint struct{ Type, For string }

// next says what to type next, if all is well.
func (s *story) next(ctx context.Context, hints []Hint) {
	if len(s.failed) > 0 || ctx.Err() != nil {
		return
	}
	s.Begin("next")
	longest, rows := 0, [][]string{}
	for _, h := range hints {
		longest = max(longest, len(h.Type))
		rows = append(rows, []string{h.Type, h.For})
	}
	if longest < width/2 {
		s.Rows(rows...)
		return
	}
	for _, h := range hints {
		s.line(h.Type)
		s.Say("    %s", h.For)
	}
}

// end returns an error if a step failed or was not reached.
func (s *story) end(ctx context.Context) error {
	if len(s.failed) > 0 {
		return fmt.Errorf("lab %s: not everything is as it should be: see %q above", s.name, s.failed)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("lab %s: the story was interrupted: %w", s.name, err)
	}
	return nil
}

// cluster says what runs in the lab.
func (s *story) cluster(took time.Duration) {
	c := s.lab.Cluster
	policies := fmt.Sprintf("%d policies", len(c.Policies))
	if len(c.Policies) == 1 {
		policies = "1 policy"
	}
	s.Say("%s, %s, %s, %s: up after %s", model.Count(len(c.Nodes), "node"), model.Count(len(c.Pods), "pod"),
		model.Count(len(c.Services), "service"), policies, span(took))
	for _, kind := range slices.Sorted(maps.Keys(c.Passed)) {
		s.Say("passed over: %d %s", c.Passed[kind], kind)
	}
	for _, w := range s.lab.Warnings {
		s.Say("note: %s", model.Printable(w))
	}
}

// follow sends a request, and says where it went.
func (s *story) follow(t probe.Try) error {
	begin := time.Now()
	a, err := ask(t.NetNS, t.To, answerTime)
	if err != nil {
		return fmt.Errorf("%s asked %s: %w", t.Source.Name, port(t.Frontend), err)
	}
	took, backend := time.Since(begin), a.Namespace+"/"+a.Pod
	seen := "not its own address"
	if slices.Contains(t.Addrs, a.Client.Addr()) {
		seen = "its own address"
	}
	s.Rows(
		[]string{"client", t.Source.Name + " on " + t.Source.Node, ofFamily(t.Addrs, t.To.Addr()).String()},
		[]string{"service", t.Service, t.To.String()},
		[]string{"backend", backend + " on " + a.Node, s.address(backend, t.To.Addr(), a.Port), "answers after " + span(took)},
		[]string{"client", "as the backend sees it", a.Client.Addr().String(), seen},
	)
	return nil
}

// address returns a pod's address of a family and a port.
func (s *story) address(pod string, family netip.Addr, port uint16) string {
	for _, p := range s.lab.Cluster.Pods {
		if p.Namespace+"/"+p.Name == pod {
			return netip.AddrPortFrom(ofFamily(plan.Addrs(p), family), port).String()
		}
	}
	return ""
}

// ofFamily returns the address of another one's family, or the zero Addr if there is none.
func ofFamily(addrs []netip.Addr, family netip.Addr) netip.Addr {
	for _, a := range addrs {
		if a.Is4() == family.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// reach sends a request for each pair of workload and service port, and shows who reached what.
func (s *story) reach(ctx context.Context, pairs []probe.Try, legend bool) error {
	s.Progress("asking every service from a pod of each workload")
	results, err := probe.Run(ctx, pairs, 1)
	if err != nil {
		return err
	}
	p := probe.NewPairs(results)
	matrix, p := drawn(p)
	if n := len(matrix); n > 1 && !legend {
		matrix = matrix[:n-1]
	}
	s.Quote(matrix...)
	if p.Failed() > 0 {
		return errors.New(strings.Join(append(p.Failures(), p.Summary()), "\n"))
	}
	s.Good("%s", p.Summary())
	return nil
}

// mostDrawn is how many services or clients a table may have that is drawn with a line for each.
const mostDrawn = 16

// drawn draws who reached what, if it is small enough, and returns the table that has the drawing's
// columns. The legend is the last line.
func drawn(p *probe.Pairs) ([]string, *probe.Pairs) {
	if lines := p.Matrix(width - margin); lines != nil && len(p.Clients) <= mostDrawn {
		return lines, p.ByService()
	}
	if len(p.Ports) > mostDrawn || len(p.Clients) > mostDrawn || p.Failed() > 0 {
		return []string{"(too large to draw here: --verbose does)"}, p
	}
	var b strings.Builder
	p.Table(&b)
	return strings.Split(strings.TrimRight(b.String(), "\n"), "\n"), p
}

// deny sends a request that policies deny, and shows what an agent says about it. It returns whom
// to ask `sluice why` about: the pod that the request would have reached, and its port.
func (s *story) deny(ctx context.Context, d *denial) (to string, err error) {
	backends := s.backends(d.Service)
	nodes := []string{d.Source.Node}
	for _, p := range backends {
		nodes = append(nodes, p.Spec.NodeName)
	}
	slices.Sort(nodes)
	s.Progress("%s asks %s", d.Source.Name, port(d.Frontend))
	dropped, err := s.drop(ctx, d, slices.Compact(nodes))
	if err != nil {
		return "", err
	}
	to = "svc/" + port(d.Frontend)
	for _, p := range backends {
		if _, rest, found := strings.Cut(dropped.text, " "+p.Namespace+"/"+p.Name+":"); found {
			number, _, _ := strings.Cut(rest, " ")
			to = p.Namespace + "/" + p.Name + ":" + number
		}
	}
	why, err := sluice(ctx, s.lab, dropped.node, "why", d.Source.Name, to)
	if err != nil {
		return "", err
	}
	s.Say("%s asks %s: no answer", d.Source.Name, port(d.Frontend))
	s.Ran("sluice drops")
	s.Quote(dropped.text)
	s.Ran("sluice why", d.Source.Name, to)
	s.Quote(decisive(why)...)
	return to, nil
}

// backends lists the pods that a service selects.
func (s *story) backends(service string) (pods []*corev1.Pod) {
	for _, svc := range s.lab.Cluster.Services {
		for _, p := range s.lab.Cluster.Pods {
			if svc.Namespace+"/"+svc.Name == service && plan.Selects(svc, p) {
				pods = append(pods, p)
			}
		}
	}
	return pods
}

// tellTime bounds the time from a dropped request to an agent's line about it.
const tellTime = 30 * time.Second

// drop sends a request that should be dropped, again if nobody notices, and returns what one of the
// nodes' agents says about it.
func (s *story) drop(ctx context.Context, d *denial, nodes []string) (found drop, err error) {
	ctx, cancel := context.WithTimeout(ctx, tellTime)
	defer cancel()
	lines, stop, err := watchDrops(ctx, s.lab, nodes)
	if err != nil {
		return found, err
	}
	defer stop()
	for {
		fate := make(chan error, 1)
		go func() { fate <- isDenied(d.Try) }()
		for asked := false; !asked; {
			select {
			case l := <-lines:
				if found.text == "" && strings.Contains(l.text, d.Source.Name+":") {
					found = l
				}
			case err := <-fate:
				if err != nil {
					return found, err
				}
				asked = true
			case <-ctx.Done():
				return found, fmt.Errorf("%s asked %s, and no agent told of a drop: %w", d.Source.Name, port(d.Frontend), ctx.Err())
			}
		}
		if found.text != "" {
			return found, nil
		}
	}
}

// isDenied sends a request that policies deny, and returns an error unless it is dropped.
func isDenied(t probe.Try) error {
	a, err := ask(t.NetNS, t.To, silenceTime)
	switch {
	case err == nil:
		return fmt.Errorf("%s asked %s, and %s answered, though policies deny it", t.Source.Name, port(t.Frontend), a.Pod)
	case !errors.Is(err, echo.ErrSilent):
		return fmt.Errorf("%s asked %s, which should be dropped: %w", t.Source.Name, port(t.Frontend), err)
	}
	return nil
}

// decisive returns the lines of an explanation that say what denies and what would not, of the
// first connection.
func decisive(why string) []string {
	lines, _, _ := strings.Cut(strings.TrimSpace(why), "\n\n")
	all := strings.Split(lines, "\n")
	remedy := "missing: "
	if strings.Contains(lines, "nearest: ") {
		remedy = "nearest: "
	}
	some := slices.DeleteFunc(slices.Clone(all[1:]), func(l string) bool {
		l = strings.TrimSpace(l)
		return !strings.HasPrefix(l, "by ") && !strings.HasPrefix(l, remedy)
	})
	return append(all[:1:1], some...)
}

// port names a service's port: "namespace/name:port".
func port(f probe.Frontend) string { return fmt.Sprintf("%s:%d", f.Service, f.To.Port()) }

// span is a duration for people: two or three digits.
func span(d time.Duration) string {
	switch {
	case d < 100*time.Microsecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1000)
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// thousands writes a number with commas: 2,113.
func thousands[N int | int64](n N) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
