package manifest

import (
	"bytes"
	"fmt"
	"iter"
	"regexp"
	"strconv"

	"sigs.k8s.io/yaml"
)

// documents reads a YAML file. Each document stands for itself: what is wrong
// with one is no matter to the others. One that is written as JSON is read as such.
func (p *parser) documents(data []byte) {
	for line, doc := range split(data) {
		p.line, p.yaml = line, true
		if doc[0] == '{' {
			p.scanner = scanner{data: doc}
			if p.skip() == nil && p.end() {
				p.yaml = false
				p.stream(doc)
				continue
			}
		}
		converted, err := toJSON(doc)
		if err != nil {
			at, reason := locate(err, line)
			p.holeAt(at, reason)
			continue
		}
		if string(converted) != "null" {
			p.stream(converted)
		}
	}
}

// toJSON converts a document. A parser of a language this rich may have
// faults of its own, and no file may bring the agent down.
func toJSON(doc []byte) (converted []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: the document can't be parsed: %v", r)
		}
	}()
	return yaml.YAMLToJSON(doc)
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
			end := len(data)
			if i := bytes.IndexByte(data[at:], '\n'); i >= 0 {
				end = at + i + 1
			}
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
