// Package chart draws line and bar charts as small, self-contained SVG files: a light background,
// an axis from zero (or logarithmic), whiskers from the least to the greatest measurement, a
// legend, and the value at each point that has room for it.
package chart

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Kind is how values are drawn.
type Kind uint8

// The kinds.
const (
	Lines Kind = iota
	Bars
)

// Chart is one picture. Categories lie along the x axis, evenly spaced; each series has one value
// for each, in the same order.
type Chart struct {
	Kind       Kind
	Title      string
	Subtitle   string
	XLabel     string
	YLabel     string
	LogY       bool // all values must be positive
	Categories []string
	Series     []Series
}

// Series is one line, or one bar in each group.
type Series struct {
	Name   string
	Values []Value
}

// Value is a measurement with its spread. Absent ones are not drawn.
type Value struct {
	Y, Low, High float64
	Absent       bool
}

// The picture's size and the plot's place in it, in pixels.
const (
	width, height       = 860, 460
	left, right         = 84, 844
	top, bottom         = 96, 376
	legendTop           = 64
	labelGap, labelSize = 18, 12
)

// palette holds colours that stay apart for most kinds of colour blindness.
var palette = []string{"#0b62a4", "#d1495b", "#e8a33d", "#5a8f3c", "#7b52ab", "#666666"}

// SVG renders the chart.
func (c *Chart) SVG() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="Helvetica, Arial, sans-serif" font-size="%d">`+"\n",
		width, height, width, height, labelSize)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	text(&b, 20, 28, "start", `font-size="18" font-weight="bold" fill="#222222"`, c.Title)
	text(&b, 20, 48, "start", `fill="#555555"`, c.Subtitle)
	a := c.axis()
	taken := make([][]float64, len(c.Categories))
	c.drawAxes(&b, a)
	c.drawLegend(&b)
	for i, s := range c.Series {
		if c.Kind == Bars {
			c.drawBars(&b, a, i, s)
		} else {
			c.drawLine(&b, a, i, s, taken)
		}
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

func (c *Chart) drawAxes(b *strings.Builder, a axis) {
	for _, t := range a.ticks {
		y := a.y(t)
		fmt.Fprintf(b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#e3e3e3"/>`+"\n", left, y, right, y)
		text(b, left-8, y+4, "end", `fill="#444444"`, Number(t))
	}
	fmt.Fprintf(b, `<path d="M%d %d V%d H%d" fill="none" stroke="#444444"/>`+"\n", left, top, bottom, right)
	for i, name := range c.Categories {
		text(b, c.x(i), bottom+labelGap, "middle", `fill="#444444"`, name)
	}
	text(b, (left+right)/2, bottom+46, "middle", `fill="#222222"`, c.XLabel)
	fmt.Fprintf(b, `<g transform="translate(22 %d) rotate(-90)">`, (top+bottom)/2)
	text(b, 0, 0, "middle", `fill="#222222"`, c.YLabel)
	b.WriteString("</g>\n")
}

// drawLegend draws the series' names in a row.
func (c *Chart) drawLegend(b *strings.Builder) {
	x := float64(left)
	for i, s := range c.Series {
		fmt.Fprintf(b, `<rect x="%.1f" y="%d" width="12" height="12" rx="2" fill="%s"/>`+"\n", x, legendTop, colour(i))
		text(b, x+18, legendTop+11, "start", `fill="#222222"`, s.Name)
		x += 34 + 6.6*float64(len([]rune(s.Name)))
	}
}

// drawLine writes a value beside its point unless one is there already; taken holds where, for each
// category.
func (c *Chart) drawLine(b *strings.Builder, a axis, series int, s Series, taken [][]float64) {
	var path strings.Builder
	verb := "M"
	for i, v := range s.Values {
		if v.Absent {
			continue // the line goes on to the next value
		}
		fmt.Fprintf(&path, "%s%.1f %.1f ", verb, c.x(i), a.y(v.Y))
		verb = "L"
	}
	fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="2.2"/>`+"\n", strings.TrimSpace(path.String()), colour(series))
	for i, v := range s.Values {
		if v.Absent {
			continue
		}
		whisker(b, a, c.x(i), v, colour(series))
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3.6" fill="%s"/>`+"\n", c.x(i), a.y(v.Y), colour(series))
		if y := a.y(v.Y); !slices.ContainsFunc(taken[i], func(o float64) bool { return math.Abs(o-y) < 11 }) {
			taken[i] = append(taken[i], y)
			text(b, c.x(i)+7, y-7, "start", fmt.Sprintf(`font-size="11" fill="%s"`, colour(series)), Number(v.Y))
		}
	}
}

func (c *Chart) drawBars(b *strings.Builder, a axis, series int, s Series) {
	group := float64(right-left) / float64(len(c.Categories))
	w := min(group*0.8/float64(len(c.Series)), 64)
	for i, v := range s.Values {
		if v.Absent {
			continue
		}
		x := c.x(i) + w*(float64(series)-float64(len(c.Series))/2)
		y := a.y(v.Y)
		fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x+1, y, w-2, bottom-y, colour(series))
		whisker(b, a, x+w/2, v, "#222222")
		text(b, x+w/2, min(y, a.y(v.High))-5, "middle", `font-size="11" fill="#222222"`, Number(v.Y))
	}
}

// whisker draws the spread if it is large enough to be seen.
func whisker(b *strings.Builder, a axis, x float64, v Value, stroke string) {
	low, high := a.y(v.Low), a.y(v.High)
	if low-high < 2 {
		return
	}
	fmt.Fprintf(b, `<path d="M%.1f %.1f h6 m-3 0 V%.1f m-3 0 h6" fill="none" stroke="%s"/>`+"\n", x-3, low, high, stroke)
}

// x is the middle of a category.
func (c *Chart) x(i int) float64 {
	return left + (float64(i)+0.5)*float64(right-left)/float64(len(c.Categories))
}

func colour(i int) string { return palette[i%len(palette)] }

func text(b *strings.Builder, x, y float64, anchor, attrs, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" %s>%s</text>`+"\n", x, y, anchor, attrs, html.EscapeString(s))
}

// axis maps values to pixels.
type axis struct {
	min, max float64
	log      bool
	ticks    []float64
}

func (a axis) y(v float64) float64 {
	part := (v - a.min) / (a.max - a.min)
	if a.log {
		part = math.Log(max(v, a.min)/a.min) / math.Log(a.max/a.min)
	}
	return bottom - part*float64(bottom-top)
}

// axis returns an axis with round ends and ticks for all values.
func (c *Chart) axis() axis {
	low, high := math.Inf(1), 0.0
	for _, s := range c.Series {
		for _, v := range s.Values {
			if !v.Absent {
				low, high = min(low, v.Y, v.Low), max(high, v.Y, v.High)
			}
		}
	}
	if high == 0 {
		high = 1
	}
	if c.LogY && low > 0 {
		return logAxis(low, high)
	}
	return linearAxis(high)
}

func linearAxis(high float64) axis {
	step := math.Pow(10, math.Floor(math.Log10(high)))
	switch {
	case high/step < 2:
		step /= 4
	case high/step < 5:
		step /= 2
	}
	a := axis{max: math.Ceil(high*1.08/step) * step}
	for t := 0.0; t <= a.max+step/2; t += step {
		a.ticks = append(a.ticks, t)
	}
	return a
}

func logAxis(low, high float64) axis {
	a := axis{log: true, min: math.Pow(10, math.Floor(math.Log10(low))), max: math.Pow(10, math.Ceil(math.Log10(high*1.05)))}
	for t := a.min; t <= a.max*1.01; t *= 10 {
		a.ticks = append(a.ticks, t)
	}
	return a
}

// Number prints a value with at most three significant decimals, and with thousands separated.
func Number(v float64) string {
	a := math.Abs(v)
	prec := 0
	switch {
	case a == 0:
	case a < 0.1:
		prec = 3
	case a < 10:
		prec = 2
	case a < 100:
		prec = 1
	}
	s := strconv.FormatFloat(v, 'f', prec, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	if prec > 0 || a < 999.5 {
		return s
	}
	sign := ""
	if v < 0 {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}
