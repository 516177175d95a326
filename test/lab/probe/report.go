package probe

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
)

// Row sums up the outcomes of requests to one frontend (a node port counts once for all nodes) from
// one kind of source, as far as the expected outcome is the same.
type Row struct {
	Service     string         `json:"service"`
	From        From           `json:"from"`
	Sources     []string       `json:"sources"`
	Via         Kind           `json:"via"`
	Protocol    string         `json:"protocol"`
	Address     string         `json:"address"` // for a NodePort or HealthCheck, the port and the family
	Expected    Fate           `json:"expected"`
	Why         string         `json:"why,omitempty"`
	Sent        int            `json:"sent"`
	AnsweredBy  map[string]int `json:"answeredBy"` // by "namespace/name" of the pod
	Kept        int            `json:"clientKept"`
	Masqueraded int            `json:"clientMasqueraded"`
	Failed      int            `json:"failed"`
	Failures    []string       `json:"failures,omitempty"`
	Excused     int            `json:"excused,omitempty"` // not checked, as the cluster changed meanwhile
	Excuses     []string       `json:"excuses,omitempty"`
}

// Report is the outcome of a probe.
type Report struct {
	Lab      string         `json:"lab"`
	Rows     []Row          `json:"rows"`
	Silent   []Silent       `json:"silent"`          // services with nothing to send to
	Pairs    *Pairs         `json:"pairs,omitempty"` // who reaches what, if there are policies
	Requests int            `json:"requests"`
	Failed   int            `json:"failed"`
	Excused  int            `json:"excused,omitempty"`
	Took     model.Duration `json:"took"`
}

// NewReport sums up results.
func NewReport(results []Result, silent []Silent) *Report {
	rep := &Report{Silent: silent}
	type key struct {
		service, protocol, address, why string
		from                            From
		via                             Kind
		fate                            Fate
	}
	rows := map[key]*Row{}
	var order []key
	for _, r := range results {
		k := key{r.Service, r.Protocol, address(r.Frontend), r.Why, r.Source.Kind, r.Frontend.Kind, r.Fate}
		row := rows[k]
		if row == nil {
			row = &Row{
				Service: k.service, From: k.from, Via: k.via, Protocol: k.protocol, Address: k.address,
				Expected: k.fate, Why: k.why, AnsweredBy: map[string]int{},
			}
			rows[k] = row
			order = append(order, k)
		}
		row.add(r)
		rep.count(r)
	}
	for _, k := range order {
		rep.Rows = append(rep.Rows, *rows[k])
	}
	return rep
}

func (rep *Report) count(r Result) {
	rep.Requests += r.Sent
	rep.Failed += r.Failed
	rep.Excused += r.Excused
}

func (row *Row) add(r Result) {
	if !slices.Contains(row.Sources, r.Source.Name) {
		row.Sources = append(row.Sources, r.Source.Name)
	}
	row.Sent += r.Sent
	row.Kept += r.Kept
	row.Masqueraded += r.Masqueraded
	for pod, n := range r.By {
		row.AnsweredBy[pod] += n
	}
	row.Failed += r.Failed
	row.Excused += r.Excused
	text := fmt.Sprintf("%s → %s: %s", r.Source.Name, r.To, r.Reason)
	if r.Failed > 0 {
		row.Failures = append(row.Failures, text)
	}
	if r.Excused > 0 {
		row.Excuses = append(row.Excuses, r.Reason)
	}
}

func address(f Frontend) string {
	if f.Kind == NodePort || f.Kind == HealthCheck {
		return fmt.Sprintf("%d (%s)", f.To.Port(), family(f.To.Addr()))
	}
	return f.To.String()
}

// Table writes the report for people, its columns separated by tabs.
func (rep *Report) Table(w io.Writer) {
	line := func(cells ...string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) }
	line("SERVICE", "FROM", "VIA", "SENT", "ANSWERED BY", "CLIENT SEEN", "RESULT")
	for i, r := range rep.Rows {
		name := short(r.Service)
		if i > 0 && rep.Rows[i-1].Service == r.Service {
			name = ""
		}
		line(name, r.from(), fmt.Sprintf("%s %s/%s", r.Via, r.Address, r.Protocol), fmt.Sprint(r.Sent), r.answers(), r.client(), r.result())
	}
	for _, s := range rep.Silent {
		line(short(s.Service), "-", "-", "0", "-", "-", s.Why)
	}
	if rep.Pairs != nil {
		line("")
		rep.Pairs.Table(w)
	}
}

// AddPairs adds the table of who reaches what.
func (rep *Report) AddPairs(results []Result) {
	rep.Pairs = NewPairs(results)
	for _, r := range results {
		rep.count(r)
	}
}

// Outcome says how many requests failed.
func (rep *Report) Outcome() string {
	outcome := "all as they should be"
	if rep.Failed > 0 {
		outcome = fmt.Sprintf("%d FAILED", rep.Failed)
	}
	if rep.Excused > 0 {
		outcome += fmt.Sprintf(", except for %d while the cluster changed", rep.Excused)
	}
	return outcome
}

// Failures lists all wrong outcomes.
func (rep *Report) Failures() (all []string) {
	for _, r := range rep.Rows {
		for _, f := range r.Failures {
			all = append(all, fmt.Sprintf("%s via %s: %s", short(r.Service), r.Via, f))
		}
	}
	if rep.Pairs != nil {
		all = append(all, rep.Pairs.Failures()...)
	}
	return all
}

// Summary returns one sentence, and one about who reaches what.
func (rep *Report) Summary() string {
	text := fmt.Sprintf("%s in %.1f s: %s", model.Count(rep.Requests, "request"), rep.Took.Seconds(), rep.Outcome())
	if rep.Pairs != nil {
		text = rep.Pairs.Summary() + "\n" + text
	}
	return text
}

func (r *Row) from() string {
	if len(r.Sources) == 1 {
		return short(r.Sources[0])
	}
	return fmt.Sprintf("%d %ss", len(r.Sources), r.From)
}

// answers names the answering pods, the most frequent first.
func (r *Row) answers() string {
	if len(r.AnsweredBy) == 0 {
		return "-"
	}
	pods := slices.SortedFunc(maps.Keys(r.AnsweredBy), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.AnsweredBy[b], r.AnsweredBy[a]), cmp.Compare(a, b))
	})
	const most = 4
	var parts []string
	for _, p := range pods[:min(most, len(pods))] {
		parts = append(parts, fmt.Sprintf("%s ×%d", p[strings.Index(p, "/")+1:], r.AnsweredBy[p]))
	}
	if more := len(pods) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return strings.Join(parts, ", ")
}

func (r *Row) client() string {
	switch {
	case r.Kept > 0 && r.Masqueraded > 0:
		return fmt.Sprintf("kept %d, masqueraded %d", r.Kept, r.Masqueraded)
	case r.Kept > 0:
		return "kept"
	case r.Masqueraded > 0:
		return "masqueraded"
	}
	return "-"
}

func (r *Row) result() string {
	switch {
	case r.Failed > 0:
		text := fmt.Sprintf("FAILED %d of %d: %s", r.Failed, r.Sent, r.Failures[0])
		if more := len(r.Failures) - 1; more > 0 {
			text += fmt.Sprintf(" (and %d more like it)", more)
		}
		return text
	case r.Excused > 0:
		return fmt.Sprintf("%d not checked: the cluster changed meanwhile: %s", r.Excused, r.Excuses[0])
	case r.Expected == Differs:
		return "differs: " + r.Why
	case r.Expected == Unknown:
		return "not checked: " + r.Why
	case r.Expected != Answered:
		return fmt.Sprintf("ok: %s, %s", r.Expected, r.Why)
	}
	return "ok"
}

// short leaves out the default namespace.
func short(name string) string { return strings.TrimPrefix(name, "default/") }
