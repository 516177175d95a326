package list

import (
	"errors"
	"fmt"
	"strings"
)

// saved reads a line of "ipset save":
//
//	create NAME hash:net family inet hashsize 1024 maxelem 65536
//	add NAME 192.0.2.0/24 timeout 300 comment "as seen # there"
func (p *parser) saved(line string) error {
	command, rest := word(line)
	name, rest := word(rest)
	what, options := word(rest)
	if name == "" || what == "" {
		return fmt.Errorf("%.60q is no line of 'ipset save'", line)
	}
	if p.set == "" {
		p.set = strings.Clone(name)
	}
	if name != p.set {
		return fmt.Errorf("belongs to the set %.40q, those before it to %.40q: save each to a file of its own, with 'ipset save NAME'", name, p.set)
	}
	if command == "create" {
		return checkType(what, options)
	}
	if hasOption(options, "nomatch") {
		return errors.New("is an exception (nomatch), which a list can't hold: write the networks without it")
	}
	return p.entry(what)
}

// checkType refuses sets whose entries are not just addresses.
func checkType(kind, options string) error {
	switch kind {
	case "hash:net", "hash:ip", "bitmap:ip":
	default:
		return fmt.Errorf("a set of type %.40q holds more than addresses: only hash:net, hash:ip and bitmap:ip can be read", kind)
	}
	for _, o := range []string{"netmask", "bitmask"} {
		if hasOption(options, o) {
			return fmt.Errorf("a set with the option %s can't be read: its entries stand for networks; make it a hash:net", o)
		}
	}
	return nil
}

// hasOption tells whether an option is there, comments in quotes left out;
// they can't hold a quote.
func hasOption(options, name string) bool {
	for quoted := false; options != ""; quoted = !quoted {
		var part string
		part, options, _ = strings.Cut(options, `"`)
		if quoted {
			continue
		}
		for o := range strings.FieldsSeq(part) {
			if o == name {
				return true
			}
		}
	}
	return false
}

// word cuts the first word off.
func word(text string) (first, rest string) {
	first, rest, _ = strings.Cut(strings.TrimLeft(text, " \t"), " ")
	return first, strings.TrimSpace(rest)
}
