package xtables

import (
	"strconv"
	"strings"
)

// Chain is a chain of a table.
type Chain struct {
	Table, Name string
	Policy      string // "ACCEPT" or "DROP"; empty unless packets enter the chain by themselves
	Rules       []Rule
}

// Rule is a rule of a chain.
type Rule struct {
	Text    string // without "-A CHAIN "
	Packets uint64 // that it has matched, where iptables-save was asked (-c)
}

// Parse reads what iptables-save prints, a chain before its rules. Like iptables-restore, it takes
// a line for a rule.
func Parse(saved string) (chains []*Chain) {
	table, byName := "", map[string]*Chain{} // those of the table
	var at *Chain
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table, at = line[1:], nil
			clear(byName)
		case strings.HasPrefix(line, ":"):
			fields := strings.Fields(line[1:])
			if len(fields) < 2 {
				continue
			}
			c := &Chain{Table: table, Name: fields[0], Policy: strings.TrimPrefix(fields[1], "-")}
			chains, byName[c.Name] = append(chains, c), c
		case strings.HasPrefix(line, "-A "), strings.HasPrefix(line, "["):
			counters, rule, _ := strings.Cut(line, "-A ")
			name, text, _ := strings.Cut(rule, " ")
			if at == nil || at.Name != name {
				at = byName[name]
			}
			if at == nil {
				continue
			}
			r := Rule{Text: text}
			if counters != "" {
				packets, _, _ := strings.Cut(counters[1:], ":")
				r.Packets, _ = strconv.ParseUint(packets, 10, 64)
			}
			at.Rules = append(at.Rules, r)
		}
	}
	return chains
}

// Option is an option of a rule, as "! -d 192.0.2.1/32".
type Option struct {
	Not  bool
	Name string   // "-d"
	Args []string // up to the next option, quotes undone
}

// Arg is the first argument; empty: there is none.
func (o Option) Arg() string {
	if len(o.Args) == 0 {
		return ""
	}
	return o.Args[0]
}

// Options are what the rule asks and does.
func (r Rule) Options() (options []Option) {
	not, last := false, &Option{}
	for text := strings.TrimLeft(r.Text, " "); text != ""; text = strings.TrimLeft(text, " ") {
		word, rest, quoted := cutWord(text)
		text = rest
		// A comment may look like an option.
		argument := quoted || last.Name == "--comment" && len(last.Args) == 0
		switch {
		case word == "!" && !argument:
			not = true
		case options == nil || not || strings.HasPrefix(word, "-") && !argument:
			options = append(options, Option{Not: not, Name: word})
			not, last = false, &options[len(options)-1]
		default:
			last.Args = append(last.Args, word)
		}
	}
	return options
}

// cutWord cuts the first word off a rule, which may be in quotes.
func cutWord(text string) (word, rest string, quoted bool) {
	if !strings.HasPrefix(text, `"`) {
		word, rest, _ = strings.Cut(text, " ")
		return word, rest, false
	}
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch {
		case text[i] == '"':
			return b.String(), text[i+1:], true
		case text[i] == '\\' && i+1 < len(text):
			i++
		}
		b.WriteByte(text[i])
	}
	return b.String(), "", true
}
