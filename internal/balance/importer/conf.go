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
	line  int
	words []string
	block []*statement
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

// unheeded says of each statement of a block why it is left out, if it is: known are the words that
// the block may have, with "" for those that are heeded.
func unheeded(n *notes, block []*statement, known ...map[string]string) {
	for _, s := range block {
		why := "keepalived.conf(5) has no such word here"
		for _, words := range known {
			if reason, ok := words[s.word(0)]; ok {
				why = reason
			}
		}
		if why != "" {
			n.add(s.line, s.text(), "left out: %s", why)
		}
	}
}

// confReader reads the syntax of keepalived.conf, which is one of lines: a brace opens a block of
// what stands before it, on the same line or an earlier one.
type confReader struct {
	notes   *notes
	defined map[string]string
	open    []*statement // the blocks that are open, the file itself first
	skip    bool         // the next line belongs to something that is left out
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
	continued := strings.HasSuffix(text, `\`)
	skipped := c.skip
	c.skip = continued && (skipped || definition.MatchString(text))
	if skipped {
		return nil
	}
	first := strings.TrimSpace(text)
	switch def := definition.FindStringSubmatch(text); {
	case def != nil && continued:
		c.notes.add(line, "$"+def[1], "left out: definitions of several lines are not read")
		return nil
	case def != nil:
		value, err := c.expand(strings.TrimSpace(def[2]))
		c.defined[def[1]] = value
		return err
	case strings.HasPrefix(first, "@"):
		c.notes.add(line, first, "left out: it depends on the name of the machine; leave one machine's lines in the file")
		return nil
	case strings.HasPrefix(first, "~SEQ"), strings.HasPrefix(first, "~LST"):
		c.notes.add(line, first, "left out: sequences and lists are not read; write their lines out")
		return nil
	}
	text, err := c.expand(text)
	if err != nil {
		return err
	}
	return c.statements(line, text)
}

var parameter = regexp.MustCompile(`\$\{[A-Za-z_][A-Za-z0-9_]*\}|\$[A-Za-z_][A-Za-z0-9_]*`)

// expand puts the values of parameters in their places. Those that are not defined stay.
func (c *confReader) expand(text string) (string, error) {
	text = parameter.ReplaceAllStringFunc(text, func(p string) string {
		if value, ok := c.defined[strings.Trim(p, "${}")]; ok {
			return value
		}
		return p
	})
	if len(text) > 1<<16 {
		return "", fmt.Errorf("with its parameters it is longer than %d characters", 1<<16)
	}
	return text, nil
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
			c.open, now = append(c.open, inner.block[len(inner.block)-1]), nil
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

// confWords parts a line into words, without quotes and comments.
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
		case ch == '#' || ch == '!':
			end()
			return words
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
