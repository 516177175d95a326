package model

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Printable returns a text that others have written as it may be shown on a terminal, in a line of
// a log or in a comment: whatever does not print (control characters, line breaks and tabs among
// them, what turns the direction of writing, and bytes that are no UTF-8) is written as in a Go
// string, as "\x1b" or "\u202e".
func Printable(text string) string {
	if !strings.ContainsFunc(text, unprintable) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			b.WriteString(`\x` + strconv.FormatUint(uint64(text[0]), 16))
		case unprintable(r):
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		default:
			b.WriteString(text[:size])
		}
		text = text[size:]
	}
	return b.String()
}

// PrintableLines is Printable for a text of several lines, which stay so.
func PrintableLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		whole := strings.TrimSuffix(line, "\n")
		b.WriteString(Printable(whole) + line[len(whole):])
	}
	return b.String()
}

// unprintable holds for U+FFFD as well, which stands for bytes that are no UTF-8 where a text is
// gone through by runes.
func unprintable(r rune) bool { return r == utf8.RuneError || !strconv.IsPrint(r) }

// IsName reports whether a text has the characters of a Kubernetes object's name: lower-case
// letters, digits, and within these '-' and '.'.
func IsName(text string) bool {
	for i := range len(text) {
		c := text[i]
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if inner := (c == '-' || c == '.') && i > 0 && i < len(text)-1; !alnum && !inner {
			return false
		}
	}
	return text != ""
}

// Count writes a number of things in a sentence: "no addresses", "1 address" or "2 addresses".
func Count(n int, what string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(what, "s"):
		what += "es"
	default:
		what += "s"
	}
	if n == 0 {
		return "no " + what
	}
	return fmt.Sprintf("%d %s", n, what)
}

// Of writes how many of all: "none of 3 pods", "1 of 3 pods"; "no pod" where there is none at all.
func Of(n, all int, what string) string {
	switch {
	case all == 0:
		return "no " + what
	case n == 0:
		return "none of " + Count(all, what)
	}
	return fmt.Sprintf("%d of %s", n, Count(all, what))
}

// FirstFew writes the first few of some texts, and counts the rest: "a, b and 3 more".
func FirstFew(texts []string, most int) string {
	text := strings.Join(texts[:min(len(texts), most)], ", ")
	if more := len(texts) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Join writes a list of addresses, networks or names as one text, with the separator between them.
func Join[T fmt.Stringer](list []T, separator string) string {
	texts := make([]string, len(list))
	for i, v := range list {
		texts[i] = v.String()
	}
	return strings.Join(texts, separator)
}

// FamilyName is "IPv4" or "IPv6".
func FamilyName(is4 bool) string {
	if is4 {
		return "IPv4"
	}
	return "IPv6"
}
