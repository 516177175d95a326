// Package demo tells short stories of a lab: what Sluice does there with real packets, in some
// thirty lines. Everything that a story says is what happened in that run, and every number was
// measured in it. A step that does not come out as it should says so, and fails the story.
package demo

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// width is the longest line of a story, and margin the width of its left column, in characters.
const (
	width  = 100
	margin = 10
)

// Teller writes a story: in the left column the name of each step, as soon as the step begins, and
// beside it what happened. It is not safe for concurrent use.
type Teller struct {
	Out io.Writer
	// Colour makes names and outcomes stand out, with the escape sequences of a terminal.
	Colour bool
	// Columns is the width of the terminal on which progress is shown, which is taken back by what
	// follows; 0: Out is no terminal.
	Columns int

	open  bool // the left column of the present line is written
	shown bool // progress is shown on the present line
	begun bool // a step has begun
}

// style is how a terminal shows text.
type style string

const (
	plain   style = ""
	bold    style = "1"
	dim     style = "2"
	good    style = "32"
	bad     style = "31"
	command style = "36"
)

func (t *Teller) paint(s style, text string) string {
	if !t.Colour || s == plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

func (t *Teller) write(text string) { _, _ = io.WriteString(t.Out, text) }

// Begin begins a step, of a name that is shorter than the margin.
func (t *Teller) Begin(name string) {
	t.End()
	if t.begun {
		t.write("\n")
	}
	t.write(t.paint(bold, name) + strings.Repeat(" ", margin-len(name)))
	t.open, t.begun = true, true
}

// Progress says what is being done, until the next line is written.
func (t *Teller) Progress(format string, args ...any) {
	text := []rune(fmt.Sprintf(format, args...) + " …")
	if room := min(t.Columns, width) - margin - 1; room > 0 {
		t.clear()
		t.write("\x1b7" + t.paint(dim, string(text[:min(len(text), room)])))
		t.shown = true
	}
}

// Steps returns a writer of lines that are shown as progress.
func (t *Teller) Steps() io.Writer { return steps{t} }

type steps struct{ *Teller }

// Write shows the last line of what is written.
func (s steps) Write(text []byte) (int, error) {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	s.Progress("%s", lines[len(lines)-1])
	return len(text), nil
}

// End ends the story on a line of its own.
func (t *Teller) End() {
	t.clear()
	if t.open {
		t.write("\n")
		t.open = false
	}
}

// clear takes progress back.
func (t *Teller) clear() {
	if t.shown {
		t.write("\x1b8\x1b[J")
		t.shown = false
	}
}

// line writes one line of the right column. The text may have colours.
func (t *Teller) line(text string) {
	t.clear()
	if !t.open {
		t.write(strings.Repeat(" ", margin))
	}
	t.write(strings.TrimRight(text, " ") + "\n")
	t.open = false
}

// Say writes a sentence, on as many lines as it needs.
func (t *Teller) Say(format string, args ...any) { t.wrap(plain, "", "", fmt.Sprintf(format, args...)) }

// Good writes a sentence about what came out as it should.
func (t *Teller) Good(format string, args ...any) { t.wrap(good, "", "", fmt.Sprintf(format, args...)) }

// Bad writes a sentence about what did not.
func (t *Teller) Bad(format string, args ...any) { t.wrap(bad, "", "", fmt.Sprintf(format, args...)) }

// Ran writes a command line.
func (t *Teller) Ran(args ...string) { t.wrap(command, "", "    ", "$ "+strings.Join(args, " ")) }

// Quote writes lines of a program's output, with their own indentation.
func (t *Teller) Quote(lines ...string) {
	for _, l := range lines {
		body := strings.TrimLeft(l, " ")
		indent := l[:len(l)-len(body)]
		t.wrap(plain, indent, indent+"    ", body)
	}
}

// Rows writes rows in columns.
func (t *Teller) Rows(rows ...[]string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
		}
		t.line(b.String())
	}
}

func (t *Teller) wrap(s style, first, hanging, text string) {
	for _, l := range wrap(text, first, hanging, width-margin) {
		body := strings.TrimLeft(l, " ")
		t.line(l[:len(l)-len(body)] + t.paint(s, body))
	}
}

// wrap breaks text at spaces into lines of a width, the first one behind first and the others
// behind hanging. A word that is longer than a line is not broken.
func wrap(text, first, hanging string, width int) []string {
	var lines []string
	line, empty := first, true
	for word := range strings.SplitSeq(text, " ") {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line, empty = hanging, true
		}
		if !empty {
			line += " "
		}
		line += word
		empty = false
	}
	return append(lines, line)
}
