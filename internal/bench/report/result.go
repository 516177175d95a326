// Package report holds what experiments measured, as data, and renders it as JSON, charts and Markdown.
package report

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"sluice.dev/sluice/internal/bench/chart"
)

// Scale is how large the experiments are.
type Scale string

// Outcome of a goal in a word.
func (g Goal) Outcome() string {
	if g.Met {
		return "met"
	}
	return "missed"
}

// Result is all that came of one experiment; it is kept as JSON.
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
	Variant   string    `json:"variant,omitempty"`
	Metric    string    `json:"metric"`
	Unit      string    `json:"unit"`
	Samples   []float64 `json:"samples"` // one a round, in the order of the rounds
	Median    float64   `json:"median"`
	Min       float64   `json:"min"`
	Max       float64   `json:"max"`
}

// Goal is one number to reach and what was reached.
type Goal struct {
	What   string `json:"what"`
	Goal   string `json:"goal"`
	Result string `json:"result"` // with its spread
	Met    bool   `json:"met"`
	Scale  string `json:"scale,omitempty"` // where the goal is for another scale than was run
}

// Picture names a chart's file.
type Picture struct {
	File, Title string
}

// Machine is what the numbers depend on beside the program.
type Machine struct {
	Kernel string            `json:"kernel"`
	CPU    string            `json:"cpu"`
	Cores  int               `json:"cores"`
	Memory string            `json:"memory"`
	Go     string            `json:"go"`
	Load   string            `json:"load"` // load average when the experiment began: a busy machine's numbers say little
	Tools  map[string]string `json:"tools"`
}

// Spread is the median, the least and the greatest of some samples.
type Spread struct{ Median, Min, Max float64 }

// SpreadOf of no samples is zero.
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

// Ratios divides two measurements round by round: each pair was measured one
// shortly after the other, so what the machine did meanwhile cancels out.
func Ratios(a, base *Measurement) Spread {
	var r []float64
	for i := range min(len(a.Samples), len(base.Samples)) {
		if base.Samples[i] != 0 {
			r = append(r, a.Samples[i]/base.Samples[i])
		}
	}
	return SpreadOf(r)
}

// Add files one sample of a quantity.
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

// Find returns nil where nothing was measured.
func (r *Result) Find(dataplane string, services int, variant, metric string) *Measurement {
	return r.Same(Measurement{Dataplane: dataplane, Services: services, Variant: variant, Metric: metric})
}

// Same finds what measures the same quantity as m at the same scale; nil if nothing does. Endpoints
// follow from services.
func (r *Result) Same(m Measurement) *Measurement {
	for i := range r.Series {
		o := &r.Series[i]
		if o.Dataplane == m.Dataplane && o.Services == m.Services && o.Addresses == m.Addresses && o.Policies == m.Policies &&
			o.Variant == m.Variant && o.Metric == m.Metric {
			return o
		}
	}
	return nil
}

func (r *Result) Skip(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); !slices.Contains(r.Skipped, s) {
		r.Skipped = append(r.Skipped, s)
	}
}

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

// ReadResults reads the results of these experiments that are in a folder, in that order.
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
