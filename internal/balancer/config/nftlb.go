package config

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sluice.dev/sluice/internal/balancer/keys"
)

// The meanings of values in nftlb; how they are read here is in the tables.

const (
	nothingInstalled = "left out: nftlb accepts it and then installs nothing of the farm, without a word"
	takesFor         = "becomes %s: that is what nftlb takes it for"
)

func nftlbText(value string) (string, string) { return value, "" }

// nftlbVerb is for keys that do something rather than say how things are.
func nftlbVerb(string) (string, string) {
	return "", "left out: it is something to do, not a part of a configuration"
}

// nftlbUnused is for keys that nftlb reads and never uses.
func nftlbUnused(string) (string, string) {
	return "", "left out: nftlb accepts it, and it has no effect"
}

// nftlbWord takes the default for everything but some words.
func nftlbWord(otherwise string, words ...string) keys.Meaning {
	return func(value string) (string, string) {
		if value == otherwise || slices.Contains(words, value) {
			return value, ""
		}
		return otherwise, fmt.Sprintf(takesFor, otherwise)
	}
}

// nftlbNumber is a number of at least a minimum. nftlb reads the digits that a value begins with.
func nftlbNumber(least, otherwise int64) keys.Meaning {
	return func(value string) (string, string) {
		n, err := strconv.ParseInt(value, 10, 32)
		if err == nil && n >= least {
			return value, ""
		}
		digits := leadingDigits.FindString(value)
		if n, err = strconv.ParseInt(digits, 10, 32); err == nil && n >= least {
			return digits, fmt.Sprintf(takesFor, digits)
		}
		return "", fmt.Sprintf("left out: it is no number from %d; %d is the default", least, otherwise)
	}
}

var leadingDigits = regexp.MustCompile(`^\s*-?[0-9]*`)

func nftlbMark(value string) (string, string) {
	if _, err := strconv.ParseUint(strings.TrimPrefix(value, "0x"), 16, 32); err != nil {
		return "", "left out: it is no hexadecimal number; nftlb takes it for 0"
	}
	return value, ""
}

func nftlbAddr(value string) (string, string) {
	if a, err := netip.ParseAddr(value); err != nil || a.Zone() != "" {
		return "", "left out: it is no address; nftlb accepts it and asks DNS, or installs nothing of the farm, without a word"
	}
	return value, ""
}

// nftlbAddrOrNone is an address, or empty.
func nftlbAddrOrNone(value string) (string, string) {
	if value == "" {
		return "", ""
	}
	return nftlbAddr(value)
}

// nftlbPorts is ports and ranges of them: 80,90-95.
func nftlbPorts(value string) (string, string) {
	if value == "" {
		return value, ""
	}
	for part := range strings.SplitSeq(value, ",") {
		from, to, ranged := strings.Cut(part, "-")
		if !ranged {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 16)
		last, errLast := strconv.ParseUint(to, 10, 16)
		if err != nil || errLast != nil || last < first {
			return "", nothingInstalled + ": it is no list of ports and ranges from 0 to 65535"
		}
	}
	return value, ""
}

func nftlbPort(value string) (string, string) {
	if n, err := strconv.ParseUint(value, 10, 16); value != "" && (err != nil || n == 0) {
		return "", nothingInstalled + ": a backend has one port, from 1 to 65535"
	}
	return value, ""
}

// nftlbWords is any of some words, which nftlb looks for within the text; otherwise is what none of
// them makes.
func nftlbWords[E comparable](otherwise string, words []word[E]) keys.Meaning {
	return func(value string) (string, string) {
		if found, _ := within(value, words); found != "" {
			return found, ""
		}
		return nftlbWord(otherwise)(value)
	}
}

var nftlbVerdict = nftlbWords("log drop accept", verdictWords)

// nftlbKeys is the same for parts of a packet, where it is said what else there is.
func nftlbKeys(value string) (string, string) {
	found, rest := within(value, keyWords)
	if found != "" && strings.TrimSpace(rest) != "" {
		return found, fmt.Sprintf(takesFor, found)
	}
	return nftlbWords("none", keyWords)(value)
}

// within returns the words that a text has, with spaces between them, and what it has beside.
func within[E comparable](text string, words []word[E]) (found, rest string) {
	var all []string
	rest = text
	for _, w := range words {
		if strings.Contains(text, w.text) {
			all = append(all, w.text)
			rest = strings.ReplaceAll(rest, w.text, "")
		}
	}
	return strings.Join(all, " "), rest
}

var rateForm = regexp.MustCompile(`^[0-9]{1,9}(/(second|minute|hour|day|week))?$`)

func nftlbRate(value string) (string, string) {
	if !rateForm.MatchString(value) {
		return "", "left out: it is no number of packets with second, minute, hour, day or week, such as 10/second"
	}
	return value, ""
}

// nftlbPrefix is text that a log line begins with.
func nftlbPrefix(value string) (string, string) {
	if strings.Contains(value, `"`) {
		return "", nothingInstalled + `: it contains a "`
	}
	return value, ""
}

// nftlbFamily knows that nftlb's documentation has "dual", which its program takes for ipv4.
func nftlbFamily(value string) (string, string) {
	if value == "inet" {
		return value, "nftlb installs the IPv4 half of it alone; here it is both"
	}
	return nftlbWord("ipv4", "ipv6")(value)
}

func nftlbFarmPriority(string) (string, string) {
	return "", "left out: nftlb overwrites a farm's priority by the one in use"
}

// nftlbBackendState knows the states that nftlb shows and takes for up.
func nftlbBackendState(value string) (string, string) {
	if value == "available" || value == "config_error" {
		return "up", ""
	}
	return nftlbWord("up", "down", "off")(value)
}

// nftlbElement is an address, a prefix or a range of a policy.
func nftlbElement(value string) (string, string) {
	from, to, ranged := strings.Cut(value, "-")
	if _, err := netip.ParsePrefix(value); err == nil {
		return value, ""
	}
	first, err := netip.ParseAddr(from)
	last := first
	if err == nil && ranged {
		last, err = netip.ParseAddr(to)
	}
	if err != nil || last.Less(first) || last.Is4() != first.Is4() {
		return "", "left out: it is no address, prefix or range; nftlb accepts it and then loses the elements of every policy, without a word"
	}
	return value, ""
}
