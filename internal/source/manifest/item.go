package manifest

import "bytes"

// itemLines tells the lines of the file on which the items of a list begin, which is a
// YAML document whose first line is that of text. It reads what people and kubectl
// write: "items:" on a line of its own, and each item behind a dash. As
// all that belongs to an item is indented more than its dash, no other line looks
// like one. The result is nil for lists that are written otherwise.
func itemLines(text []byte, first int) []int {
	var lines []int
	inside, indent := false, -1
	for at, number := 0, first; at < len(text); number++ {
		end := lineEnd(text, at)
		line := bytes.TrimRight(text[at:end], " \t\r\n")
		at = end
		trimmed := bytes.TrimLeft(line, " ")
		depth := len(line) - len(trimmed)
		dash := len(trimmed) > 0 && trimmed[0] == '-' && (len(trimmed) == 1 || trimmed[1] == ' ')
		switch {
		case !inside:
			inside = isKey(line, "items:")
		case len(trimmed) == 0, trimmed[0] == '#':
		case dash && (indent < 0 || depth == indent):
			indent = depth
			lines = append(lines, number)
		case depth == 0:
			return lines
		}
	}
	return lines
}

// isKey tells whether a line holds a key of the document alone, except for a comment.
func isKey(line []byte, key string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(key))
	rest = bytes.TrimLeft(rest, " \t")
	return ok && (len(rest) == 0 || rest[0] == '#')
}
