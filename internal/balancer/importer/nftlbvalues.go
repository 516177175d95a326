package importer

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// A check of a value returns it as it is to be written, and why it is another, or is left out.
type check func(value string) (keep string, why string)

const (
	nothingInstalled = "left out: nftlb accepts it and then installs nothing of the farm, without a word"
	takesFor         = "becomes %s: that is what nftlb takes it for"
)

func anyText(value string) (string, string) { return value, "" }

// verb is for keys that do something rather than say how things are.
func verb(string) (string, string) {
	return "", "left out: it is something to do, not a part of a configuration"
}

// noEffect is for keys that nftlb reads and never uses.
func noEffect(string) (string, string) {
	return "", "left out: nftlb accepts it, and it has no effect"
}

// oneOf takes the default for everything else, as nftlb does.
func oneOf(otherwise string, values ...string) check {
	return func(value string) (string, string) {
		for _, v := range append(values, otherwise) {
			if v == value {
				return value, ""
			}
		}
		return otherwise, fmt.Sprintf(takesFor, otherwise)
	}
}

// count is a number of at least a minimum. nftlb reads the digits that a value begins with.
func count(least, otherwise int) check {
	return func(value string) (string, string) {
		n, err := strconv.ParseInt(value, 10, 32)
		if err == nil && n >= int64(least) {
			return value, ""
		}
		digits := leadingDigits.FindString(value)
		if n, err = strconv.ParseInt(digits, 10, 32); err == nil && n >= int64(least) {
			return digits, fmt.Sprintf(takesFor, digits)
		}
		return "", fmt.Sprintf("left out: it is no number from %d; %d is the default", least, otherwise)
	}
}

var leadingDigits = regexp.MustCompile(`^\s*-?[0-9]*`)

// hexadecimal is a mark.
func hexadecimal(value string) (string, string) {
	if _, err := strconv.ParseUint(strings.TrimPrefix(value, "0x"), 16, 32); err != nil {
		return "", "left out: it is no hexadecimal number; nftlb takes it for 0"
	}
	return value, ""
}

func ipAddress(value string) (string, string) {
	if a, err := netip.ParseAddr(value); err != nil || a.Zone() != "" {
		return "", "left out: it is no address; nftlb accepts it and asks DNS, or installs nothing of the farm, without a word"
	}
	return value, ""
}

// ipOrNone is an address, or empty.
func ipOrNone(value string) (string, string) {
	if value == "" {
		return "", ""
	}
	return ipAddress(value)
}

// portList is ports and ranges of them: 80,90-95.
func portList(value string) (string, string) {
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

func backendPort(value string) (string, string) {
	if n, err := strconv.ParseUint(value, 10, 16); value != "" && (err != nil || n == 0) {
		return "", nothingInstalled + ": a backend has one port, from 1 to 65535"
	}
	return value, ""
}

// flowKeys is what a hash and persistence are by. nftlb looks for the names within the text.
func flowKeys(value string) (string, string) {
	var found []string
	rest := value
	for _, key := range []string{"srcip", "dstip", "srcport", "dstport", "srcmac", "dstmac"} {
		if strings.Contains(value, key) {
			found = append(found, key)
			rest = strings.ReplaceAll(rest, key, "")
		}
	}
	clean := strings.Join(found, " ")
	if clean == "" {
		return oneOf("none")(value)
	}
	if strings.TrimSpace(rest) != "" {
		return clean, fmt.Sprintf(takesFor, clean)
	}
	return clean, ""
}

var rateForm = regexp.MustCompile(`^[0-9]{1,9}(/(second|minute|hour|day|week))?$`)

func rate(value string) (string, string) {
	if !rateForm.MatchString(value) {
		return "", "left out: it is no number of packets with second, minute, hour, day or week, such as 10/second"
	}
	return value, ""
}

// logPrefix is text that a log line begins with.
func logPrefix(value string) (string, string) {
	if strings.Contains(value, `"`) {
		return "", nothingInstalled + `: it contains a "`
	}
	return value, ""
}

// words is any of some words, found within the text; otherwise is what none of them makes.
func words(otherwise string, known ...string) check {
	return func(value string) (string, string) {
		var found []string
		for _, w := range known {
			if strings.Contains(value, w) {
				found = append(found, w)
			}
		}
		if len(found) == 0 {
			return oneOf(otherwise)(value)
		}
		return strings.Join(found, " "), ""
	}
}

// familyOf knows that nftlb's documentation has "dual", which its program takes for ipv4.
func familyOf(value string) (string, string) {
	if value == "inet" {
		return value, "nftlb installs the IPv4 half of it alone; here it is both"
	}
	return oneOf("ipv4", "ipv6")(value)
}

func priorityOfFarm(string) (string, string) {
	return "", "left out: nftlb overwrites a farm's priority by the one in use"
}

// member is an address, a prefix or a range of a policy.
func member(value string) (string, string) {
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
