// Package report holds what experiments measured, as data, and renders it as JSON, charts and
// Markdown.
package report

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"sluice.dev/sluice/test/bench/chart"
)

// Scale is how large the experiments are.
type Scale string

// Outcome is "met" or "missed".
func (g Goal) Outcome() string {
	if g.Met {
		return "met"
	}
	return "missed"
}

// Result is what one experiment measured. It is kept as JSON.
type Result struct {
	Experiment string        `json:"experiment"`
	Title      string        `json:"title"`
	How        string        `json:"how"` // what was done, for people
	Command    string        `json:"command"`
	Started    time.Time     `json:"started"`
	Seconds    float64       `json:"seconds"`
	Scale      Scale         `json:"scale"`
	Rounds     int           `json:"rounds"`
	Machine    Machine       `json:"machine"`
	Series     []Measurement `json:"measurements"`
	Goals      []Goal        `json:"goals"`
	Charts     []Picture     `json:"charts"`
	Skipped    []string      `json:"skipped"` // what could not be run, and why
	Notes      []string      `json:"notes"`
}

// Measurement is one quantity of one data plane at one scale, measured several times.
type Measurement struct {
	Dataplane string    `json:"dataplane"`
	Services  int       `json:"services"`
	Endpoints int       `json:"endpoints"`           // in all
	Addresses int       `json:"addresses,omitempty"` // or networks, in a list
	Policies  int       `json:"policies,omitempty"`
	Nodes     int       `json:"nodes,omitempty"`
	Variant   string    `json:"variant,omitempty"`
	Metric    string    `json:"metric"`
	Unit      string    `json:"unit"`
	Samples   []float64 `json:"samples"` // one a round, in the order of the rounds
	Median    float64   `json:"median"`
	Min       float64   `json:"min"`
	Max       float64   `json:"max"`
}

// Goal is one goal and what was reached.
type Goal struct {
	What   string `json:"what"`
	Goal   string `json:"goal"`
	Result string `json:"result"` // with its spread
	Met    bool   `json:"met"`
	Scale  string `json:"scale,omitempty"` // the scale of this run, if the goal is for another one
}

// Picture names a chart's file.
type Picture struct {
	File, Title string
}

// Machine describes the machine that the numbers were measured on.
type Machine struct {
	Kernel string            `json:"kernel"`
	CPU    string            `json:"cpu"`
	Cores  int               `json:"cores"`
	Memory string            `json:"memory"`
	Go     string            `json:"go"`
	Load   string            `json:"load"` // load average when the experiment began: numbers of a busy machine mean little
	Tools  map[string]string `json:"tools"`
}

// Spread is the median, the least and the greatest of a number of samples.
type Spread struct{ Median, Min, Max float64 }

// SpreadOf returns the spread of samples; that of no samples is zero.
func SpreadOf(samples []float64) Spread {
	if len(samples) == 0 {
		return Spread{}
	}
	s := slices.Sorted(slices.Values(samples))
	mid := s[len(s)/2]
	if len(s)%2 == 0 {
		mid = (s[len(s)/2-1] + mid) / 2
	}
	return Spread{Median: mid, Min: s[0], Max: s[len(s)-1]}
}

// String prints "1.02 (1.01–1.05)".
func (s Spread) String() string {
	return fmt.Sprintf("%s (%s–%s)", chart.Number(s.Median), chart.Number(s.Min), chart.Number(s.Max))
}

// Ratios divides two measurements round by round. The two samples of a round were taken shortly one
// after the other, so whatever slowed the machine down cancels out.
func Ratios(a, base *Measurement) Spread {
	var r []float64
	for i := range min(len(a.Samples), len(base.Samples)) {
		if base.Samples[i] != 0 {
			r = append(r, a.Samples[i]/base.Samples[i])
		}
	}
	return SpreadOf(r)
}

// Add adds one sample to a measurement, which it makes if there is none.
func (r *Result) Add(m Measurement, sample float64) {
	have := r.Same(m)
	if have == nil {
		r.Series = append(r.Series, m)
		have = &r.Series[len(r.Series)-1]
	}
	have.Samples = append(have.Samples, sample)
	s := SpreadOf(have.Samples)
	have.Median, have.Min, have.Max = s.Median, s.Min, s.Max
}

// Find returns a measurement; nil if there is none.
func (r *Result) Find(dataplane string, services int, variant, metric string) *Measurement {
	return r.Same(Measurement{Dataplane: dataplane, Services: services, Variant: variant, Metric: metric})
}

// Same returns the measurement of the same quantity as m at the same size; nil if there is none.
// The number of endpoints follows from that of services.
func (r *Result) Same(m Measurement) *Measurement {
	for i := range r.Series {
		o := &r.Series[i]
		if o.Dataplane == m.Dataplane && o.Services == m.Services && o.Addresses == m.Addresses && o.Policies == m.Policies && o.Nodes == m.Nodes &&
			o.Variant == m.Variant && o.Metric == m.Metric {
			return o
		}
	}
	return nil
}

// Skip notes what could not be run, and why, once.
func (r *Result) Skip(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); !slices.Contains(r.Skipped, s) {
		r.Skipped = append(r.Skipped, s)
	}
}

// Note adds a remark for people.
func (r *Result) Note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// write keeps the result as JSON.
func (r *Result) write(dir string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write result of %s: %w", r.Experiment, err)
	}
	return os.WriteFile(filepath.Join(dir, r.Experiment+".json"), append(b, '\n'), 0o644)
}

// ReadResults reads the results of these experiments from a folder, in this order; it passes over
// those that are not there.
func ReadResults(dir string, names []string) ([]*Result, error) {
	var all []*Result
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(dir, name+".json"))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read earlier result: %w", err)
		}
		r := &Result{}
		if err := json.Unmarshal(b, r); err != nil {
			return nil, fmt.Errorf("read earlier result %s.json: %w: remove it and run the experiment again", name, err)
		}
		all = append(all, r)
	}
	return all, nil
}
