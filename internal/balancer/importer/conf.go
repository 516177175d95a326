package importer

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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
	notes    *notes
	configID string
	defined  map[string]string
	defining string       // the definition of several lines that has not ended; "": none
	open     []*statement // the blocks that are open, the file itself first
	files    []string     // those that are being read, each included by the one before
	read     int          // lines, as often as they are read
	depth    int          // of lines that stand for others
}

// What a file may come to, with its sequences and what it includes.
const (
	mostLines = 1 << 17
	mostDepth = 50
)

func readConf(r io.Reader, o Options, n *notes) ([]*statement, error) {
	c := confReader{notes: n, configID: o.ConfigID, defined: map[string]string{"_HASH": "#", "_BANG": "!"}, open: []*statement{{}}}
	if err := c.file(o.File, r); err != nil {
		return nil, n.wrong(len(n.lines), err)
	}
	if inner := c.open[len(c.open)-1]; len(c.open) > 1 {
		return nil, n.wrong(inner.line, fmt.Errorf("the block of %s is not closed", inner.text()))
	}
	return c.open[0].block, nil
}

// wrong adds to an error where it was found.
func (n *notes) wrong(at int, err error) error {
	if at == 0 {
		return fmt.Errorf("read keepalived.conf: %w", err)
	}
	p := n.lines[at-1]
	return fmt.Errorf("read %s: line %d: %w", cmp.Or(p.file, "keepalived.conf"), p.line, err)
}

// file reads a file, and what it includes.
func (c *confReader) file(name string, r io.Reader) error {
	shown := name
	if len(c.files) == 0 {
		shown = ""
	}
	c.files = append(c.files, name)
	c.moved()
	lines := bufio.NewScanner(r)
	for line := 1; lines.Scan(); line++ {
		c.notes.lines = append(c.notes.lines, lineOf{shown, line})
		text := uncommented(strings.ToValidUTF8(lines.Text(), "?"))
		if text == "" {
			c.defining = ""
			continue
		}
		if err := c.line(len(c.notes.lines), text); err != nil {
			return err
		}
	}
	c.files = c.files[:len(c.files)-1]
	c.moved()
	return lines.Err()
}

// moved has ${_PWD} be the folder of the file that is read now, if that is known.
func (c *confReader) moved() {
	if n := len(c.files); n > 0 && c.files[n-1] != "" {
		c.defined["_PWD"], _ = filepath.Abs(filepath.Dir(c.files[n-1]))
	}
}

var (
	definition = regexp.MustCompile(`^\$([A-Za-z_][A-Za-z0-9_]*)=(.*)$`)
	inclusion  = regexp.MustCompile(`^include[rmwba]?\s+(.+)$`)
	sequence   = regexp.MustCompile(`^~(SEQx?|LST)\((.*?)\)(?:\s+(.*))?$`)
)

// line reads a line without its comment. What it stands for is read in its place.
func (c *confReader) line(at int, text string) error {
	if c.read++; c.read > mostLines {
		return fmt.Errorf("it comes to more than %d lines", mostLines)
	}
	if c.depth++; c.depth > mostDepth {
		return fmt.Errorf("lines and files stand for each other more than %d times", mostDepth)
	}
	defer func() { c.depth-- }()
	if c.defining != "" {
		c.goOn(text)
		return nil
	}
	if special, err := c.special(at, text); special || err != nil {
		return err
	}
	if def := definition.FindStringSubmatch(text); def != nil {
		c.defined[def[1]] = strings.TrimSpace(strings.TrimSuffix(def[2], `\`))
		if strings.HasSuffix(text, `\`) {
			c.defining = def[1]
		}
		return nil
	}
	text, err := c.expand(text)
	if err != nil {
		return err
	}
	if several := strings.Split(text, "\n"); len(several) > 1 {
		for _, one := range several {
			if err := c.line(at, one); err != nil {
				return err
			}
		}
		return nil
	}
	if special, err := c.special(at, text); special || err != nil {
		return err
	}
	if m := inclusion.FindStringSubmatch(text); m != nil {
		return c.include(at, text, strings.Trim(m[1], `"'`))
	}
	return c.statements(at, text)
}

// goOn reads a line of a definition of several lines.
func (c *confReader) goOn(text string) {
	line, more := strings.CutSuffix(text, `\`)
	c.defined[c.defining] += "\n" + strings.TrimSpace(line)
	if !more {
		c.defining = ""
	}
}

// special reads a line that begins with a condition, a sequence or a list, and reports whether it
// does.
func (c *confReader) special(at int, text string) (is bool, err error) {
	if condition, is := strings.CutPrefix(text, "@"); is {
		name, rest := condition, ""
		if i := strings.IndexAny(condition, " \t"); i >= 0 {
			name, rest = condition[:i], strings.TrimSpace(condition[i:])
		}
		other, not := strings.CutPrefix(name, "^")
		switch {
		case c.configID == "":
			return true, c.notRead(at, text, rest, "it depends on the name of the machine; say whose lines to take with --config-id")
		case (other == c.configID) == not:
			return true, nil
		}
		return true, c.line(at, rest)
	}
	m := sequence.FindStringSubmatch(text)
	if m == nil {
		return false, nil
	}
	values, err := c.expand(m[2])
	if err != nil {
		return true, err
	}
	names, rows := listed(values)
	if m[1] != "LST" {
		names, rows = counted(values, map[string]string{"SEQ": "%d", "SEQx": "%x"}[m[1]])
	}
	if len(rows) == 0 {
		return true, c.notRead(at, text, m[3], "it is no sequence or list of values")
	}
	for _, row := range rows {
		for i, name := range names {
			c.defined[name] = row[i]
		}
		if err := c.line(at, m[3]); err != nil {
			return true, err
		}
	}
	return true, nil
}

// counted reads what is in the brackets of ~SEQ: a name, perhaps a start and a step, and an end.
func counted(text, format string) (names []string, rows [][]string) {
	args := strings.Split(text, ",")
	var n []int64
	for _, a := range args[1:] {
		v, err := strconv.ParseInt(strings.TrimSpace(a), 0, 32)
		if err != nil {
			return nil, nil
		}
		n = append(n, v)
	}
	var start, step, end int64
	switch len(n) {
	case 1:
		start, end = 1, n[0]
		if end < 0 {
			start = -1
		}
	case 2:
		start, end = n[0], n[1]
	case 3:
		start, step, end = n[0], n[1], n[2]
	default:
		return nil, nil
	}
	if step == 0 {
		step = int64(cmp.Compare(end, start)) | 1
	}
	for v := start; (v-end)*step <= 0 && len(rows) < mostLines; v += step {
		rows = append(rows, []string{fmt.Sprintf(format, v)})
	}
	return []string{strings.TrimSpace(args[0])}, rows
}

var listItem = regexp.MustCompile(`\{[^}]*\}|[^,{}]+`)

// listed reads what is in the brackets of ~LST: a name and its values, or several names in braces
// and as many values for each.
func listed(text string) (names []string, rows [][]string) {
	for _, item := range listItem.FindAllString(text, -1) {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		fields := strings.Split(strings.Trim(item, "{}"), ",")
		for i := range fields {
			fields[i] = strings.TrimSpace(fields[i])
		}
		switch {
		case names == nil:
			names = fields
		case len(fields) != len(names):
			return nil, nil
		default:
			rows = append(rows, fields)
		}
	}
	return names, rows
}

// include reads the files that a pattern stands for, from the folder of the file that includes
// them.
func (c *confReader) include(at int, text, pattern string) error {
	here := c.files[len(c.files)-1]
	if here == "" {
		c.notes.lost(at, text, "left out: files are looked for beside the one that includes them, and standard input is beside none; give the file by its name")
		return nil
	}
	found := false
	for _, p := range unbraced(pattern) {
		if !filepath.IsAbs(p) {
			p = filepath.Join(filepath.Dir(here), p)
		}
		matches, err := filepath.Glob(strings.ReplaceAll(p, "[!", "[^"))
		if err != nil {
			c.notes.lost(at, text, "left out: %v", err)
			return nil
		}
		for _, name := range matches {
			info, err := os.Stat(name)
			if err == nil && info.IsDir() || hidden(name) && !hidden(p) {
				continue
			}
			found = true
			if err == nil && (!info.Mode().IsRegular() || info.Mode()&0o111 != 0) {
				c.notes.note(Nothing, at, text, "%s is left out, as with keepalived: it is no regular file, or may be executed", name)
				continue
			}
			if err := c.included(at, text, name); err != nil {
				return err
			}
		}
	}
	switch {
	case found:
	case strings.ContainsAny(pattern, "*?["):
		c.notes.note(Nothing, at, text, "left out: there is no such file, for keepalived neither")
	default:
		c.notes.lost(at, text, "left out: there is no such file")
	}
	return nil
}

func hidden(path string) bool { return strings.HasPrefix(filepath.Base(path), ".") }

func (c *confReader) included(at int, text, name string) error {
	if slices.Contains(c.files, name) {
		return fmt.Errorf("%s includes itself", name)
	}
	f, err := os.Open(name)
	if err != nil {
		c.notes.lost(at, text, "left out: %v", err)
		return nil
	}
	defer func() { _ = f.Close() }()
	return c.file(name, f)
}

// unbraced is what a pattern with braces, as those of a shell, stands for.
func unbraced(pattern string) (all []string) {
	open := strings.IndexByte(pattern, '{')
	var parts []string
	depth, from := 0, 0
	for i := open; i >= 0 && i < len(pattern); i++ {
		switch ch := pattern[i]; {
		case ch == '{':
			if depth++; depth == 1 {
				from = i + 1
			}
		case ch == ',' && depth == 1, ch == '}' && depth == 1:
			parts, from = append(parts, pattern[from:i]), i+1
			if ch == ',' {
				continue
			}
			for _, part := range parts {
				all = append(all, unbraced(pattern[:open]+part+pattern[i+1:])...)
			}
			return all
		case ch == '}':
			depth--
		}
	}
	return []string{pattern}
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

// expand puts the values of parameters in their places. Those that are not defined stay, and those
// in a value of several lines.
func (c *confReader) expand(text string) (string, error) {
	for range mostReplacements {
		next := parameter.ReplaceAllStringFunc(text, func(p string) string {
			name := strings.Trim(p, "${} \t")
			if value, ok := c.defined[name]; ok {
				return value + strings.TrimPrefix(strings.Trim(p, "${}"), name)
			}
			return p
		})
		if next == text || strings.Contains(next, "\n") { // of several lines, each has its own time
			return next, nil
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
