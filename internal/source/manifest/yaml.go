package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"strconv"

	"sigs.k8s.io/yaml"
)

// documents reads a YAML file.
func (p *parser) documents(data []byte) {
	for d := range Documents(data) {
		p.line, p.yaml, p.text, p.twice = d.Line, !d.Given, nil, d.Twice
		if p.yaml {
			p.text = d.text
		}
		if d.Joined {
			p.out.joined++
		}
		if d.Err != nil {
			p.unreadableAt(d.ErrAt, d.Err.Error())
			continue
		}
		p.stream(d.JSON)
	}
}

// maxDocument bounds a document of YAML, which takes up to fifty times its size while it is parsed.
const maxDocument = 8 << 20

// Document is a document of a YAML file.
type Document struct {
	Line   int    // the number of its first line that says something, from 1
	JSON   []byte // it as JSON; nil if it can't be parsed
	Given  bool   // it was written as JSON: lines within it can be counted
	Err    error  // why it can't be parsed, without the line
	ErrAt  int    // the line that Err is about
	Twice  error  // a key that is given twice, of which the last counts here
	Joined bool   // it was joined to the next without a line break; see Documents

	text []byte // it as it is written
}

// Documents reads a YAML file. Each document stands for itself: what is wrong
// with one is no matter to the others. Those without content are left out.
//
// People often join files whose last line has no line break. Then the "---" that should separate it
// from the next file ends up behind that line, as in "egress: [{}]---", and the two make one
// document that can't be parsed or has all keys twice. Such a document, and no other, is split
// where a line that ends in "---" comes before a line that begins an object.
func Documents(data []byte) iter.Seq[Document] {
	return func(yield func(Document) bool) {
		for line, text := range split(data) {
			parts := values(line, text)
			if parts == nil {
				d := parseDocument(line, text)
				parts = []Document{d}
				if d.Err != nil || d.Twice != nil {
					parts = splitJoined(d, text)
				}
			}
			for _, d := range parts {
				if string(d.JSON) != "null" && !yield(d) {
					return
				}
			}
		}
	}
}

// values are the objects of a document that is JSON: they may follow each other, as for kubectl. It
// is nil if the document is anything else.
func values(line int, text []byte) (parts []Document) {
	s := scanner{data: text}
	for counted := 0; !s.end(); counted = s.pos {
		start := s.pos
		if text[start] != '{' || s.skip() != nil {
			return nil
		}
		line += bytes.Count(text[counted:start], []byte{'\n'})
		parts = append(parts, Document{Line: line, JSON: text[start:s.pos], Given: true})
		line += bytes.Count(text[start:s.pos], []byte{'\n'})
	}
	return parts
}

func parseDocument(line int, text []byte) Document {
	d := Document{Line: line, text: text}
	if len(text) > maxDocument {
		d.ErrAt = line
		d.Err = fmt.Errorf("the document has %d bytes, and of YAML at most %d are read as one, as that takes many times the memory: part it with '---', or write it as JSON", len(text), maxDocument)
		return d
	}
	var err error
	if d.JSON, err = toJSON(text, yaml.YAMLToJSONStrict); err == nil {
		return d
	}
	at, reason := locate(err, line)
	if d.JSON, err = toJSON(text, yaml.YAMLToJSON); err == nil {
		d.Twice = fmt.Errorf("line %d: %s", at, reason)
		return d
	}
	d.ErrAt, reason = locate(err, line)
	d.Err = errors.New(reason)
	return d
}

// toJSON converts a document. A parser of a language this rich may have
// faults of its own, and no file may bring the agent down.
func toJSON(doc []byte, convert func([]byte) ([]byte, error)) (converted []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: the document can't be parsed: %v", r)
		}
	}()
	return convert(doc)
}

// split yields the documents of a file, each with the number of its first line
// that says something; empty ones and those of comments alone are left out.
func split(data []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		start, first, number := 0, 0, 0 // of the document: its offset, its first line; of the line
		flush := func(end int) bool {
			return first == 0 || yield(first, data[start:end])
		}
		for at := 0; at < len(data); {
			number++
			end := lineEnd(data, at)
			line := data[at:end]
			switch {
			case isMark(line, "---"), isMark(line, "..."):
				if !flush(at) {
					return
				}
				// What stands behind "---" belongs to the document.
				start, first = at+3, 0
				if len(line) > 3 && says(line[3:]) {
					first = number
				}
			case first == 0 && says(line):
				start, first = at, number
			}
			at = end
		}
		flush(len(data))
	}
}

// isMark tells whether a line begins or ends a document.
func isMark(line []byte, mark string) bool {
	return len(line) >= 3 && string(line[:3]) == mark && (len(line) == 3 || bytes.IndexByte([]byte(" \t\r\n"), line[3]) >= 0)
}

// says tells whether there is more in a line than white space, a comment or a directive.
func says(line []byte) bool {
	if line[0] == '%' {
		return false
	}
	line = bytes.TrimSpace(line)
	return len(line) > 0 && line[0] != '#'
}

var yamlError = regexp.MustCompile(`(?s)yaml: (?:unmarshal errors:\s*)?(?:line (\d+): )?(.*)`)

// locate turns a line of the document that a YAML error names into one of the file.
func locate(err error, first int) (line int, reason string) {
	m := yamlError.FindStringSubmatch(err.Error())
	if m == nil {
		return first, err.Error()
	}
	if n, err := strconv.Atoi(m[1]); err == nil && n > 0 {
		return first + n - 1, m[2]
	}
	return first, m[2]
}
