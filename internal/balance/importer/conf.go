package importer

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// statement is a line of keepalived.conf: its words, and the block that follows them.
type statement struct {
	line   int
	words  []string
	block  []*statement
	braced bool // it has a block, be it an empty one
}

// word returns a word, "" beyond the last.
func (s *statement) word(i int) string {
	if i < len(s.words) {
		return s.words[i]
	}
	return ""
}

// text is the statement as it may be shown: its words, without its block.
func (s *statement) text() string { return strings.Join(s.words, " ") }

// last returns the last statement of a block that begins with one of the words, nil if none does.
func last(block []*statement, words ...string) *statement {
	for i := len(block) - 1; i >= 0; i-- {
		for _, w := range words {
			if block[i].word(0) == w {
				return block[i]
			}
		}
	}
	return nil
}

// confReader reads the syntax of keepalived.conf, which is one of lines: a brace opens a block of
// what stands before it, on the same line or an earlier one.
type confReader struct {
	notes   *notes
	defined map[string]string
	open    []*statement // the blocks that are open, the file itself first
	many    *manyLines   // a definition of several lines that has not ended; nil: none
}

// manyLines is a definition of several lines, which is left out.
type manyLines struct {
	line    int
	name    string
	servers bool // there are some in it
}

func readConf(r io.Reader, n *notes) ([]*statement, error) {
	c := confReader{notes: n, defined: map[string]string{}, open: []*statement{{}}}
	lines := bufio.NewScanner(r)
	for line := 1; lines.Scan(); line++ {
		if err := c.line(line, strings.ToValidUTF8(lines.Text(), "?")); err != nil {
			return nil, fmt.Errorf("read keepalived.conf: line %d: %w", line, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read keepalived.conf: %w", err)
	}
	if inner := c.open[len(c.open)-1]; len(c.open) > 1 {
		return nil, fmt.Errorf("read keepalived.conf: line %d: the block of %s is not closed", inner.line, inner.text())
	}
	return c.open[0].block, nil
}

var definition = regexp.MustCompile(`^\s*\$([A-Za-z_][A-Za-z0-9_]*)=(.*)$`)

func (c *confReader) line(line int, text string) error {
	text = uncommented(text)
	if c.many != nil {
		c.more(text)
		return nil
	}
	if def := definition.FindStringSubmatch(text); def != nil {
		if strings.HasSuffix(text, `\`) {
			c.many = &manyLines{line: line, name: def[1]}
			c.more(text)
		} else {
			c.defined[def[1]] = strings.TrimSpace(def[2])
		}
		return nil
	}
	text, err := c.expand(text)
	if err != nil {
		return err
	}
	switch first := strings.TrimSpace(text); {
	case strings.HasPrefix(first, "@"):
		_, rest, _ := strings.Cut(first, " ")
		return c.notRead(line, first, rest, "it depends on the name of the machine; leave one machine's lines in the file")
	case strings.HasPrefix(first, "~SEQ"), strings.HasPrefix(first, "~LST"):
		_, rest, _ := strings.Cut(first, ")")
		return c.notRead(line, first, rest, "sequences and lists are not read; write their lines out")
	}
	return c.statements(line, text)
}

// more reads a line of a definition of several lines.
func (c *confReader) more(text string) {
	c.many.servers = c.many.servers || strings.Contains(text, "_server")
	if strings.HasSuffix(text, `\`) {
		return
	}
	loss := Part
	if c.many.servers {
		loss = Whole
	}
	c.notes.note(loss, c.many.line, "$"+c.many.name, "left out: definitions of several lines are not read; write its lines where they are wanted")
	c.many = nil
}

// notRead leaves out a line, of which rest would be read as usual.
func (c *confReader) notRead(line int, text, rest, why string) error {
	root := ""
	if len(c.open) > 1 {
		root = c.open[1].word(0)
	}
	depth := 0
	for _, w := range confWords(rest) {
		switch w {
		case brace("{"):
			depth++
		case brace("}"):
			depth--
		}
	}
	switch {
	case depth != 0 && (root == "" || strings.HasPrefix(root, "virtual_server")):
		return fmt.Errorf("%s: the block cannot be read: %s", text, why)
	case depth != 0: // of a block that is left out
		return c.statements(line, rest)
	case root == "virtual_server_group", strings.Contains(rest, "_server"):
		c.notes.lost(line, text, "left out: %s", why)
	case root == "" || root == "virtual_server":
		c.notes.add(line, text, "left out: %s", why)
	}
	return nil
}

// uncommented returns a line without its comment and without spaces around it.
func uncommented(text string) string {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\':
			i++
		case text[i] == '"':
			quoted = !quoted
		case !quoted && (text[i] == '#' || text[i] == '!'):
			return strings.TrimSpace(text[:i])
		}
	}
	return strings.TrimSpace(text)
}

// parameter is one that is to be replaced: without braces, a space has to follow.
var parameter = regexp.MustCompile(`\$\{[A-Za-z_][A-Za-z0-9_]*\}|\$[A-Za-z_][A-Za-z0-9_]*(\s|$)`)

// mostReplacements is how often parameters are replaced in one line, as their values may have
// parameters.
const mostReplacements = 20

// expand puts the values of parameters in their places. Those that are not defined stay.
func (c *confReader) expand(text string) (string, error) {
	for range mostReplacements {
		next := parameter.ReplaceAllStringFunc(text, func(p string) string {
			name := strings.Trim(p, "${} \t")
			if value, ok := c.defined[name]; ok {
				return value + strings.TrimPrefix(strings.Trim(p, "${}"), name)
			}
			return p
		})
		if next == text {
			return text, nil
		}
		if text = next; len(text) > 1<<16 {
			return "", fmt.Errorf("with its parameters it is longer than %d characters", 1<<16)
		}
	}
	return "", fmt.Errorf("its parameters stand for each other more than %d times", mostReplacements)
}

// statements reads a line, which may close and open blocks.
func (c *confReader) statements(line int, text string) error {
	var now *statement // what the words of the line belong to
	for _, w := range confWords(text) {
		inner := c.open[len(c.open)-1]
		switch {
		case w == brace("{"):
			if len(inner.block) == 0 {
				return fmt.Errorf("a block is opened and nothing stands before it")
			}
			if len(c.open) > 20 {
				return fmt.Errorf("more than 20 blocks are within each other")
			}
			opened := inner.block[len(inner.block)-1]
			opened.braced = true
			c.open, now = append(c.open, opened), nil
		case w == brace("}"):
			if len(c.open) == 1 {
				return fmt.Errorf("a block is closed and none is open")
			}
			c.open, now = c.open[:len(c.open)-1], nil
		case now == nil:
			now = &statement{line: line, words: []string{w.text}}
			inner.block = append(inner.block, now)
		default:
			now.words = append(now.words, w.text)
		}
	}
	return nil
}

// confWord is a word of a line, or a brace that was not quoted.
type confWord struct {
	text  string
	brace bool
}

func brace(b string) confWord { return confWord{b, true} }

// confWords parts a line without comment into words, without quotes.
func confWords(text string) []confWord {
	var words []confWord
	var word strings.Builder
	var quote byte
	inWord := false
	end := func() {
		if inWord {
			words = append(words, confWord{text: word.String()})
		}
		word.Reset()
		inWord = false
	}
	for i := 0; i < len(text); i++ {
		ch := text[i]
		switch {
		case ch == '\\' && i+1 < len(text):
			i++
			word.WriteByte(text[i])
			inWord = true
		case quote != 0 && ch == quote:
			quote = 0
		case quote != 0:
			word.WriteByte(ch)
		case ch == '"' || ch == '\'':
			quote, inWord = ch, true
		case strings.HasPrefix(text[i:], "${"): // a parameter that is not defined
			length := strings.IndexByte(text[i:]+"}", '}') + 1
			word.WriteString(text[i:min(i+length, len(text))])
			inWord = true
			i += length - 1
		case ch == ' ' || ch == '\t' || ch == '\r':
			end()
		case ch == '{' || ch == '}':
			end()
			words = append(words, brace(string(ch)))
		default:
			word.WriteByte(ch)
			inWord = true
		}
	}
	end()
	return words
}
