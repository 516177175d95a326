package calico

import (
	"fmt"
	"strings"

	"sluice.dev/sluice/internal/model"
)

const (
	maxSelector = 16 << 10 // bytes; Calico's own API allows 1024 by now
	maxNesting  = 64       // parentheses within each other
	maxLabel    = 512      // bytes of a label's name, as Calico has it
)

// ParseSelector parses a selector of Calico's language. An empty one selects
// everything. Errors say at which character, counted from 1, what was expected.
//
//	or      = and { "||" and }
//	and     = term { "&&" term }
//	term    = { "!" } ( "(" or ")" | "all()" | "has(" label ")" | label test )
//	test    = ( "==" | "!=" | "contains" | "starts with" | "ends with" ) value
//	        | [ "not" ] "in" "{" [ value { "," value } ] "}"
//	value   = "'" characters "'" | '"' characters '"'
//
// Negated tests hold for objects without the label.
func ParseSelector(text string) (model.Selector, error) {
	p := parser{text: text, nesting: maxNesting, all: model.Everything()}
	return p.parse(maxSelector)
}

// parseNamespaces parses a selector of namespaces into one of what is in them:
// labels are those of the namespace.
func parseNamespaces(text string) (model.Selector, error) {
	return parseOwners(text, parser{prefix: model.NamespaceLabelPrefix, owner: model.NamespaceLabel})
}

// parsePeerNamespaces is parseNamespaces for rules, where "global()" selects
// what is in no namespace; it can't be combined with anything.
func parsePeerNamespaces(text string) (model.Selector, error) {
	return parseOwners(text, parser{prefix: model.NamespaceLabelPrefix, owner: model.NamespaceLabel, global: true})
}

// parseAccounts parses a selector of service accounts into one of the pods that
// run as them: labels are those of the service account.
func parseAccounts(text string) (model.Selector, error) {
	return parseOwners(text, parser{prefix: model.ServiceAccountLabelPrefix, owner: model.ServiceAccountLabel})
}

// parseOwners parses a selector of namespaces or service accounts into one of
// what has one. Like all() there, a negation is about those that there are: what has
// no namespace, or no service account, is never selected.
func parseOwners(text string, p parser) (model.Selector, error) {
	p.text, p.nesting, p.all = text, maxNesting, model.Has(p.owner)
	s, err := p.parse(maxSelector)
	switch {
	case err != nil:
		return model.Selector{}, err
	case p.globalAt > 0 && (p.terms > 1 || p.negated):
		return model.Selector{}, fmt.Errorf("at %d: global() can't be combined with anything else", p.globalAt)
	case p.globalAt > 0:
		return s, nil
	}
	if _, ok := s.Anchors(); ok {
		return s, nil // it asks for a label that only what has such an owner can have
	}
	return model.And(p.all, s), nil
}

// parser reads a selector from left to right, a function for each level of
// the grammar. Each returns with the first error, after which nothing is read.
type parser struct {
	text    string
	at      int // bytes read
	nesting int // parentheses that may still be opened
	err     error

	all    model.Selector // what all() means
	prefix string         // labels are those of an owner, that objects have under this prefix
	owner  string         // the label of objects that names their owner
	global bool           // global() has a meaning

	terms    int  // read so far, groups not counted
	negated  bool // something is
	globalAt int  // where global() is, from 1
}

func (p *parser) parse(length int) (model.Selector, error) {
	if len(p.text) > length {
		return model.Selector{}, fmt.Errorf("the selector has %d characters, at most %d are allowed", len(p.text), length)
	}
	if p.space(); p.at == len(p.text) {
		return p.all, nil
	}
	s := p.or()
	if p.space(); p.err == nil && p.at < len(p.text) {
		p.expected("&&, || or the end")
	}
	if p.err != nil {
		return model.Selector{}, p.err
	}
	return s, nil
}

func (p *parser) or() model.Selector {
	terms := []model.Selector{p.and()}
	for p.accept("||") {
		terms = append(terms, p.and())
	}
	return model.Or(terms...)
}

func (p *parser) and() model.Selector {
	terms := []model.Selector{p.term()}
	for p.accept("&&") {
		terms = append(terms, p.term())
	}
	return model.And(terms...)
}

func (p *parser) term() model.Selector {
	not := false
	for p.accept("!") {
		not, p.negated = !not, true
	}
	s := p.plainTerm()
	if not && p.err == nil {
		return model.Not(s)
	}
	return s
}

func (p *parser) plainTerm() model.Selector {
	if p.accept("(") {
		return p.group()
	}
	p.terms++
	start := p.at
	word := p.label("a label, has(), all(), ! or (")
	if p.err != nil || p.at == len(p.text) || p.text[p.at] != '(' {
		return p.test(p.key(word))
	}
	p.at++
	switch word {
	case "all":
		p.expect(")")
		return p.all
	case "has":
		p.space()
		key := p.key(p.label("a label"))
		p.expect(")")
		return model.Has(key)
	case "global":
		if p.global {
			p.expect(")")
			p.globalAt = start + 1
			return model.Not(model.Has(model.NamespaceLabel))
		}
		p.fail(start, "global() has a meaning in the namespaceSelector of a rule only")
	default:
		p.fail(start, "%.40s() is unknown, only has() and all() are there", word)
	}
	return model.Selector{}
}

// group reads up to the parenthesis that belongs to one just read.
func (p *parser) group() model.Selector {
	if p.nesting == 0 {
		p.fail(p.at-1, "too many parentheses within each other")
		return model.Selector{}
	}
	p.nesting--
	s := p.or()
	p.expect(")")
	p.nesting++
	return s
}

// test reads what is asked of a label.
func (p *parser) test(key string) model.Selector {
	switch {
	case p.accept("=="):
		return model.Equal(key, p.value())
	case p.accept("!="):
		return model.Not(model.Equal(key, p.value()))
	case p.accept("contains"):
		return model.Contains(key, p.value())
	case p.accept("starts"):
		p.expect("with")
		return model.StartsWith(key, p.value())
	case p.accept("ends"):
		p.expect("with")
		return model.EndsWith(key, p.value())
	case p.accept("in"):
		return model.In(key, p.set()...)
	case p.accept("not"):
		p.expect("in")
		return model.Not(model.In(key, p.set()...))
	}
	p.expected("==, !=, in, not in, contains, starts with or ends with")
	return model.Selector{}
}

// set reads values within braces; one more comma at the end is forgiven.
func (p *parser) set() []string {
	p.expect("{")
	var values []string
	for p.err == nil && !p.accept("}") {
		values = append(values, p.value())
		if !p.accept(",") {
			p.expect("}")
			break
		}
	}
	return values
}

// value reads a string between quotation marks, which it can't hold itself:
// there are no escapes.
func (p *parser) value() string {
	p.space()
	if p.err != nil {
		return ""
	}
	if p.at == len(p.text) || p.text[p.at] != '\'' && p.text[p.at] != '"' {
		p.expected("a value between quotation marks")
		return ""
	}
	v, _, closed := strings.Cut(p.text[p.at+1:], p.text[p.at:p.at+1])
	if !closed {
		p.fail(p.at, "this quotation mark is never closed")
		return ""
	}
	if i := strings.IndexFunc(v, isControl); i >= 0 {
		p.fail(p.at+1+i, "a value can't have control characters")
		return ""
	}
	p.at += len(v) + 2
	return v
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// label reads a label's name.
func (p *parser) label(what string) string {
	if p.err != nil {
		return ""
	}
	n := 0
	for p.at+n < len(p.text) && isLabel(p.text[p.at+n]) {
		n++
	}
	switch {
	case n == 0:
		p.expected(what)
		return ""
	case n > maxLabel:
		p.fail(p.at, "a label has at most %d characters, not %d", maxLabel, n)
		return ""
	}
	p.at += n
	return p.text[p.at-n : p.at]
}

func isLabel(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("_./-", c) >= 0
}

// nameLabel is a label that Calico gives to namespaces and service accounts.
const nameLabel = "projectcalico.org/name"

// key is the label of an object that a label in the text stands for.
func (p *parser) key(label string) string {
	if p.owner != "" && label == nameLabel {
		return p.owner
	}
	return p.prefix + label
}

// space skips white space, line breaks too: manifests have selectors in blocks.
func (p *parser) space() {
	for p.at < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.at]) >= 0 {
		p.at++
	}
}

// accept reads a token if it comes next.
func (p *parser) accept(token string) bool {
	p.space()
	if p.err != nil || !strings.HasPrefix(p.text[p.at:], token) {
		return false
	}
	p.at += len(token)
	return true
}

func (p *parser) expect(token string) {
	if !p.accept(token) {
		p.expected(token)
	}
}

func (p *parser) expected(what string) {
	found := "the end"
	if p.at < len(p.text) {
		found = fmt.Sprintf("%.20q", p.text[p.at:])
	}
	p.fail(p.at, "expected %s, found %s", what, found)
}

func (p *parser) fail(at int, format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("at %d: "+format, append([]any{at + 1}, args...)...)
	}
}
