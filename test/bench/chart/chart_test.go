package chart_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/test/bench/chart"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func value(y float64) chart.Value { return chart.Value{Y: y, Low: y * 0.9, High: y * 1.1} }

var charts = map[string]chart.Chart{
	"lines": {
		Kind: chart.Lines, Title: "Cost of a new connection", Subtitle: "last service hit, one core", XLabel: "services", YLabel: "µs",
		LogY: true, Categories: []string{"10", "1,000", "10,000"},
		Series: []chart.Series{
			{Name: "flat", Values: []chart.Value{value(4), value(4.1), value(4.2)}},
			{Name: "chains <&>", Values: []chart.Value{value(5), value(11), {Absent: true}}},
		},
	},
	"bars": {
		Kind: chart.Bars, Title: "Loading", Subtitle: "lower is better", XLabel: "services", YLabel: "s",
		Categories: []string{"1,000", "10,000"},
		Series: []chart.Series{
			{Name: "flat", Values: []chart.Value{value(0.02), value(0.2)}},
			{Name: "chains", Values: []chart.Value{value(0.1), value(12.7)}},
		},
	},
	"empty": {Title: "Nothing ran"},
}

func TestGolden(t *testing.T) {
	for name, c := range charts {
		t.Run(name, func(t *testing.T) {
			got := c.SVG()
			wellFormed(t, got)
			path := filepath.Join("testdata", name+".svg")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s differs (-want +got); run with -update to accept:\n%s", path, diff)
			}
		})
	}
}

func wellFormed(t *testing.T, svg []byte) {
	t.Helper()
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.0123: "0.012", 1.5: "1.5", 2: "2", 12.34: "12.3", 999.6: "1,000", 100: "100",
		1234567: "1,234,567", -2500: "-2,500", 10: "10", 200: "200",
	} {
		if got := chart.Number(v); got != want {
			t.Errorf("Number(%v) = %q, want %q", v, got, want)
		}
	}
}
