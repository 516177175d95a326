package report

import (
	"slices"

	"sluice.dev/sluice/test/bench/chart"
)

// Figure is a chart and the name of its file.
type Figure struct {
	Name string // follows the experiment's in the name of the file
	chart.Chart
}

// axisOf returns a measurement's place on a chart's x axis.
type axisOf func(m Measurement) int

// ByServices is the axis of the number of services.
func ByServices(m Measurement) int { return m.Services }

// ByEndpoints is the axis of the number of endpoints.
func ByEndpoints(m Measurement) int { return m.Endpoints }

// ByAddresses is the axis of the number of addresses in a list.
func ByAddresses(m Measurement) int { return m.Addresses }

// ByNodes is the axis of the number of nodes.
func ByNodes(m Measurement) int { return m.Nodes }

// ByPolicies is the axis of the number of policies.
func ByPolicies(m Measurement) int { return m.Policies }

// Draw makes a chart of one metric, with a series for each data plane and each of the variants, and
// a category for each size.
func Draw(r *Result, name string, c chart.Chart, x axisOf, metric string, variants ...string) Figure {
	var xs []int
	var chosen []Measurement
	for _, m := range r.Series {
		if m.Metric == metric && slices.Contains(variants, m.Variant) {
			chosen = append(chosen, m)
			if !slices.Contains(xs, x(m)) {
				xs = append(xs, x(m))
			}
		}
	}
	slices.Sort(xs)
	for _, v := range xs {
		name := chart.Number(float64(v))
		if v == 0 {
			name = "none"
		}
		c.Categories = append(c.Categories, name)
	}
	for _, m := range chosen {
		label := m.Dataplane
		if len(variants) > 1 {
			label += ", " + m.Variant
		}
		i := slices.IndexFunc(c.Series, func(s chart.Series) bool { return s.Name == label })
		if i < 0 {
			i = len(c.Series)
			c.Series = append(c.Series, chart.Series{Name: label, Values: absent(len(xs))})
		}
		c.Series[i].Values[slices.Index(xs, x(m))] = ValueOf(&m)
	}
	return Figure{name, c}
}

// ValueOf is a measurement's value on a chart; nil is absent there.
func ValueOf(m *Measurement) chart.Value {
	if m == nil {
		return chart.Value{Absent: true}
	}
	return chart.Value{Y: m.Median, Low: m.Min, High: m.Max}
}

func absent(n int) []chart.Value {
	v := make([]chart.Value, n)
	for i := range v {
		v[i].Absent = true
	}
	return v
}
