package importer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// node is a value of a JSON document, with the line on which it ends. Members of objects keep their
// order and may stand there twice, which encoding/json hides.
type node struct {
	line    int
	key     string // in an object
	kind    nodeKind
	text    string  // of a string; of a number, boolean or null, as it is written
	members []*node // of an object or a list
}

type nodeKind uint8

const (
	scalar nodeKind = iota // a number, a boolean or null
	text
	object
	list
)

// mostNested is the deepest that a document may be nested: a configuration has seven levels.
const mostNested = 20

// readTree reads one JSON value, and nothing may follow it.
func readTree(r io.Reader) (*node, error) {
	source, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(strings.NewReader(string(source)))
	d.UseNumber()
	t := treeReader{source: string(source), decoder: d}
	root, err := t.value(0)
	if err == nil {
		if _, more := d.Token(); more != io.EOF {
			err = errors.New("something follows the end of the document")
		}
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", t.line(), err)
	}
	return root, nil
}

type treeReader struct {
	source  string
	decoder *json.Decoder
	counted int // bytes of source up to which lines are counted
	lines   int
}

// line returns the line on which the last token ends.
func (t *treeReader) line() int {
	at := int(t.decoder.InputOffset())
	t.lines += strings.Count(t.source[t.counted:at], "\n")
	t.counted = at
	return t.lines + 1
}

func (t *treeReader) value(depth int) (*node, error) {
	token, err := t.decoder.Token()
	if err != nil {
		return nil, err
	}
	n := &node{line: t.line()}
	switch v := token.(type) {
	case string:
		n.kind, n.text = text, v
	case json.Delim:
		n.kind = object
		if v == '[' {
			n.kind = list
		}
		if depth == mostNested {
			return nil, fmt.Errorf("it is nested deeper than %d levels", mostNested)
		}
		return n, t.members(n, depth+1)
	default:
		n.text = strings.ReplaceAll(fmt.Sprint(v), "<nil>", "null")
	}
	return n, nil
}

func (t *treeReader) members(n *node, depth int) error {
	for t.decoder.More() {
		key := ""
		if n.kind == object {
			token, err := t.decoder.Token()
			if err != nil {
				return err
			}
			key = token.(string) // the decoder takes nothing else for a key
		}
		m, err := t.value(depth)
		if err != nil {
			return err
		}
		m.key = key
		n.members = append(n.members, m)
	}
	_, err := t.decoder.Token()
	return err
}
