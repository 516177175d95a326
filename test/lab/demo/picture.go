package demo

import (
	"bytes"
	"fmt"
	"html"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Picture collects what a Teller with colours writes, and draws it as the window of a terminal. The
// zero value is empty.
type Picture struct{ text bytes.Buffer }

// Write adds text.
func (p *Picture) Write(text []byte) (int, error) { return p.text.Write(text) }

// The measures of the picture, in pixels: of a character, the window's bar, and the space around
// the text.
const (
	cellWidth, cellHeight = 7.8, 18
	bar, border           = 34, 16
)

// colours of styles on the window's dark background, which the picture brings along: it reads well
// on a light page and on a dark one.
var colours = map[style]string{
	plain: `fill="#d0d7de"`, bold: `fill="#ffffff" font-weight="bold"`, dim: `fill="#8b949e"`,
	good: `fill="#56d364"`, bad: `fill="#ff7b72"`, command: `fill="#79c0ff"`,
}

var escape = regexp.MustCompile("\x1b\\[([0-9]*)m")

// words are separated by two spaces or more: each begins at its own column, whatever the font.
var words = regexp.MustCompile(`\S+( \S+)*`)

// SVG draws the text, below a line of what was typed.
func (p *Picture) SVG(typed string) []byte {
	lines := append([]string{"\x1b[36m$ " + typed + "\x1b[0m", ""}, strings.Split(strings.TrimSpace(p.text.String()), "\n")...)
	columns := width
	w, h := 2*border+int(cellWidth*float64(columns)), bar+border+cellHeight*len(lines)
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="13" xml:space="preserve">`+"\n", w, h, w, h)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="#0d1117" stroke="#444c56"/>`+"\n", w, h)
	for i, colour := range []string{"#ff5f57", "#febc2e", "#28c840"} {
		fmt.Fprintf(&b, `<circle cx="%d" cy="17" r="5.5" fill="%s"/>`+"\n", 20+18*i, colour)
	}
	for row, line := range lines {
		drawLine(&b, bar+border/2+cellHeight*row+cellHeight/2, line)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// drawLine draws one line at a height.
func drawLine(b *bytes.Buffer, y int, line string) {
	now, column := plain, 0
	draw := func(text string) {
		for _, at := range words.FindAllStringIndex(text, -1) {
			word := text[at[0]:at[1]]
			x := border + cellWidth*float64(column+utf8.RuneCountInString(text[:at[0]]))
			fmt.Fprintf(b, `<text x="%.1f" y="%d" textLength="%.1f" %s>%s</text>`+"\n",
				x, y, cellWidth*float64(utf8.RuneCountInString(word)), colours[now], html.EscapeString(word))
		}
		column += utf8.RuneCountInString(text)
	}
	for {
		at := escape.FindStringSubmatchIndex(line)
		if at == nil {
			draw(line)
			return
		}
		draw(line[:at[0]])
		if now = style(line[at[2]:at[3]]); now == "0" {
			now = plain
		}
		line = line[at[1]:]
	}
}
