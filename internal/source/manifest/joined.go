package manifest

import (
	"bytes"
	"encoding/json"
)

// splitJoined splits a document where files were joined without a line break, see
// Documents. It is d as a whole if there is no such place, or if one of the parts
// would be half an object.
func splitJoined(d Document, text []byte) []Document {
	var parts []Document
	start, first := 0, d.Line // of the part: its offset, its first line
	for at, number := 0, d.Line; at < len(text); number++ {
		end := lineEnd(text, at)
		line := bytes.TrimRight(text[at:end], " \t\r\n")
		mark := at + len(line) - len("---")
		at = end
		if !bytes.HasSuffix(line, []byte("---")) {
			continue
		}
		next, lines := nextThatSays(text, end)
		if next < len(text) && !beginsObject(text[next:]) {
			continue
		}
		part := parseDocument(first, text[start:mark])
		if part.Joined = true; part.Err == nil && !isObject(part.JSON) || part.Err != nil && next == len(text) {
			return []Document{d}
		}
		parts = append(parts, part)
		start, first = next, number+1+lines
	}
	if len(parts) == 0 {
		return []Document{d}
	}
	if start < len(text) {
		last := parseDocument(first, text[start:])
		if last.Err == nil && !isObject(last.JSON) {
			return []Document{d}
		}
		parts = append(parts, last)
	}
	return parts
}

// lineEnd is the offset behind the line that begins at an offset.
func lineEnd(text []byte, at int) int {
	if i := bytes.IndexByte(text[at:], '\n'); i >= 0 {
		return at + i + 1
	}
	return len(text)
}

// nextThatSays is the offset of the next line that says something, len(text) if
// there is none, and the number of lines passed over.
func nextThatSays(text []byte, at int) (offset, lines int) {
	for at < len(text) {
		end := lineEnd(text, at)
		if says(text[at:end]) {
			return at, lines
		}
		at, lines = end, lines+1
	}
	return at, lines
}

// beginsObject tells whether text begins as Kubernetes objects do.
func beginsObject(text []byte) bool {
	return bytes.HasPrefix(text, []byte("apiVersion:")) || bytes.HasPrefix(text, []byte("kind:"))
}

// isObject tells whether JSON is a Kubernetes object rather than a half of one.
func isObject(text []byte) bool {
	var o struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	return json.Unmarshal(text, &o) == nil && o.APIVersion != "" && o.Kind != ""
}
