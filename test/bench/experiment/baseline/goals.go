package baseline

import (
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/experiment/services"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// setGoals sets a goal for each pair of measurements: at most 3 % more than the baseline beyond the
// noise of the ratios, and no higher count. What was counted only while programs were replaced must
// be zero.
func setGoals(r *harness.Run) {
	for _, own := range slices.Clone(r.Series) {
		if own.Variant == upgraded || own.Variant == downgraded {
			r.Goal(own.Variant+" under load: "+own.Metric, "none", report.SpreadOf(own.Samples).String(), own.Max == 0)
			continue
		}
		was := r.Same(withDataplane(own, baselineName))
		if own.Dataplane != (peer.Sluice{}).Name() || was == nil {
			continue
		}
		what := strings.Join(slices.DeleteFunc([]string{describe(own.Metric), own.Variant, sizeOf(own)}, func(s string) bool { return s == "" }), ", ")
		pairs := r.Same(ratioOf(own))
		if own.Unit == "" {
			r.Goal(what, fmt.Sprintf("no more than the baseline (%s)", report.SpreadOf(was.Samples)), report.SpreadOf(own.Samples).String(), sum(own.Samples) <= sum(was.Samples))
		} else if pairs != nil {
			beyond := noise(pairs.Samples)
			r.Goal(what+", over the baseline", fmt.Sprintf("≤ 1.03 beyond noise (here %.1f %%)", 100*beyond),
				fmt.Sprintf("%s; of the medians %.3f", report.SpreadOf(pairs.Samples), own.Median/was.Median), pairs.Median <= 1.03+beyond)
		}
	}
}

// noise is half the distance between the quartiles of ratios, at most a fifth: a busy machine must
// not make a goal easy to reach.
func noise(ratios []float64) float64 {
	s := slices.Sorted(slices.Values(ratios))
	quarter := (len(s) - 1) / 4
	return min(0.2, (s[len(s)-1-quarter]-s[quarter])/2)
}

func sum(samples []float64) float64 {
	var total float64
	for _, s := range samples {
		total += s
	}
	return total
}

func withDataplane(m report.Measurement, name string) report.Measurement {
	m.Dataplane = name
	return m
}

// ratioOf is the measurement that holds the ratios of a measurement of both programs.
func ratioOf(m report.Measurement) report.Measurement {
	m.Dataplane, m.Metric, m.Unit, m.Samples = "sluice over baseline", m.Metric+", ratio", "", nil
	return m
}

// describe returns a metric's name, with more words if the name alone is not clear.
func describe(metric string) string {
	if metric == harness.Half || metric == harness.NinetyNine {
		return "file event to kernel, " + metric
	}
	return metric
}

// sizeOf describes the size of a case.
func sizeOf(m report.Measurement) string {
	if m.Policies > 0 {
		return chart.Number(float64(m.Policies)) + " policies"
	}
	return chart.Number(float64(m.Endpoints)) + " endpoints"
}

func charts(r *report.Result) []report.Figure {
	var ps []report.Figure
	for _, p := range []struct{ name, title, metric, variant, unit string }{
		{"start", "From the start of an agent to a programmed kernel", harness.Started, "", "s"},
		{"adopt", "From the start of an agent to a full kernel adopted", harness.Adopted, "", "s"},
		{"memory", "The agent's memory", harness.Resident, "", "MB"},
		{"connections", "Cost of a new connection", harness.PerFlow, harness.EvenHit, "µs"},
		{"change", "From a changed file to the kernel, median", harness.Half, services.InPlace, "ms"},
	} {
		ps = append(ps, report.Draw(r, p.name, chart.Chart{
			Kind: chart.Bars, Title: p.title, Subtitle: "this program and an earlier one, in turns; lower is better",
			XLabel: "endpoints in all", YLabel: p.unit,
		}, report.ByEndpoints, p.metric, p.variant))
	}
	return ps
}
