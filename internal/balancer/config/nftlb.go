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
	nothingInstalled = "nftlb accepts it and then installs nothing of the farm, without a word"
	takesFor         = "becomes %s: that is what nftlb takes it for"
)

// nftlbOnly leaves out all values but those that are valid.
func nftlbOnly(valid func(value string) bool, why string) keys.Meaning {
	return func(value string) (string, string) {
		if valid(value) {
			return value, ""
		}
		return "", "left out: " + why
	}
}

func always(string) bool { return true }
func never(string) bool  { return false }

var (
	nftlbText = nftlbOnly(always, "")
	// nftlbVerb is for keys that do something rather than say how things are, and nftlbUnused for
	// those that nftlb reads and never uses.
	nftlbVerb         = nftlbOnly(never, "it is something to do, not a part of a configuration")
	nftlbUnused       = nftlbOnly(never, "nftlb accepts it, and it has no effect")
	nftlbFarmPriority = nftlbOnly(never, "nftlb overwrites a farm's priority by the one in use")

	nftlbMark       = nftlbOnly(regexp.MustCompile(`^(0x)?0*[0-9a-fA-F]{1,8}$`).MatchString, "it is no hexadecimal number; nftlb takes it for 0")
	nftlbAddr       = nftlbOnly(isAddr, noAddress)
	nftlbAddrOrNone = nftlbOnly(func(value string) bool { return value == "" || isAddr(value) }, noAddress)
	nftlbPorts      = nftlbOnly(func(value string) bool { return value == "" || isPorts(value) }, nothingInstalled+": it is no list of ports and ranges from 0 to 65535")
	nftlbPort       = nftlbOnly(func(value string) bool {
		n, err := strconv.ParseUint(value, 10, 16)
		return value == "" || err == nil && n > 0
	}, nothingInstalled+": a backend has one port, from 1 to 65535")
	nftlbRate = nftlbOnly(regexp.MustCompile(`^[0-9]{1,9}(/(second|minute|hour|day|week))?$`).MatchString,
		"it is no number of packets with second, minute, hour, day or week, such as 10/second")
	// nftlbPrefix is text that a log line begins with.
	nftlbPrefix  = nftlbOnly(func(value string) bool { return !strings.Contains(value, `"`) }, nothingInstalled+`: it contains a "`)
	nftlbElement = nftlbOnly(isElement, "it is no address, prefix or range; nftlb accepts it and then loses the elements of every policy, without a word")
)

const noAddress = "it is no address; nftlb accepts it and asks DNS, or installs nothing of the farm, without a word"

func isAddr(value string) bool {
	a, err := netip.ParseAddr(value)
	return err == nil && a.Zone() == ""
}

// isPorts reports whether a value is ports and ranges of them, such as 80,90-95.
func isPorts(value string) bool {
	for part := range strings.SplitSeq(value, ",") {
		from, to, ranged := strings.Cut(part, "-")
		if !ranged {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 16)
		last, errLast := strconv.ParseUint(to, 10, 16)
		if err != nil || errLast != nil || last < first {
			return false
		}
	}
	return true
}

// isElement reports whether a value is an address, a prefix or a range.
func isElement(value string) bool {
	from, to, ranged := strings.Cut(value, "-")
	if !ranged {
		to = from
	}
	first, err := netip.ParseAddr(from)
	last, errLast := netip.ParseAddr(to)
	_, errPrefix := netip.ParsePrefix(value)
	return errPrefix == nil || err == nil && errLast == nil && !last.Less(first) && last.Is4() == first.Is4()
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

// nftlbFamily knows that nftlb's documentation has "dual", which its program takes for ipv4.
func nftlbFamily(value string) (string, string) {
	if value == "inet" {
		return value, "nftlb installs the IPv4 half of it alone; here it is both"
	}
	return nftlbWord("ipv4", "ipv6")(value)
}

// nftlbBackendState knows the states that nftlb shows and takes for up.
func nftlbBackendState(value string) (string, string) {
	if value == "available" || value == "config_error" {
		return "up", ""
	}
	return nftlbWord("up", "down", "off")(value)
}
