package demo

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func tell(t *Teller) {
	t.Begin("one")
	t.Progress("working")
	t.Say("%s", strings.Repeat("word ", 30)+"end")
	t.Rows([]string{"a", "long cell", "x"}, []string{"ä", "b"})
	t.Begin("two")
	t.Ran("sluice", "status")
	t.Quote("  "+strings.Repeat("quoted ", 14), "last")
	t.Good("well <done>")
	t.Begin("three")
	t.End()
}

func TestTeller(t *testing.T) {
	var b bytes.Buffer
	tell(&Teller{Out: &b})
	want := `one       word word word word word word word word word word word word word word word word word word
          word word word word word word word word word word word word end
          a  long cell  x
          ä  b

two       $ sluice status
            quoted quoted quoted quoted quoted quoted quoted quoted quoted quoted quoted quoted
                quoted quoted
          last
          well <done>

three     ` + "\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("story (-want +got):\n%s", diff)
	}
}

// On a terminal progress is shown within its width, and taken back before the next line.
func TestTellerShowsProgress(t *testing.T) {
	var b bytes.Buffer
	tell := &Teller{Out: &b, Columns: 20}
	tell.Begin("one")
	tell.Progress("a long explanation")
	tell.Say("done")
	want := "one       \x1b7a long ex\x1b8\x1b[Jdone\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

// A picture has every word of the story, at its column, and is well-formed.
func TestPicture(t *testing.T) {
	p := &Picture{}
	tell(&Teller{Out: p, Colour: true})
	svg := p.SVG("make <run>")
	var words []string
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if text, ok := token.(xml.CharData); ok && strings.TrimSpace(string(text)) != "" {
			words = append(words, string(text))
		}
	}
	if words[0] != "$ make <run>" || words[1] != "one" || words[len(words)-1] != "three" || !strings.Contains(strings.Join(words, "|"), "|a|long cell|x|ä|b|two|$ sluice status|") {
		t.Errorf("words: %q", words)
	}
	for _, want := range []string{
		`<text x="16.0" y="87" textLength="23.4" fill="#ffffff" font-weight="bold">one</text>`,
		`<text x="94.0" y="123" textLength="7.8" fill="#d0d7de">a</text>`,
		`fill="#56d364">well &lt;done&gt;</text>`,
	} {
		if !strings.Contains(string(svg), want) {
			t.Errorf("no %s in:\n%s", want, svg)
		}
	}
}
