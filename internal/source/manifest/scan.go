package manifest

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// maxDepth bounds how deep values may be nested, so that hostile input can't exhaust the stack.
const maxDepth = 500

// syntaxError means that what follows can't be made sense of.
type syntaxError struct {
	offset int
	reason string
}

func (e *syntaxError) Error() string { return e.reason }

// fieldError means that a field of a well-formed object has a value of the wrong type.
type fieldError struct {
	field  string // "spec.ports[0].port"
	reason string
}

func (e *fieldError) Error() string {
	if e.field == "" {
		return e.reason
	}
	return e.field + ": " + e.reason
}

// under puts the place of a part before the field that an error names.
func under(place string, err error) error {
	e, ok := err.(*fieldError)
	if !ok {
		return err
	}
	switch {
	case e.field == "":
		e.field = place
	case e.field[0] == '[':
		e.field = place + e.field
	default:
		e.field = place + "." + e.field
	}
	return e
}

// scanner reads JSON from memory, one value after the other, as its caller asks for them: nothing
// is built that nobody wants. It reads what encoding/json reads, with case-sensitive field names. A
// null counts as a value that isn't there.
type scanner struct {
	data  []byte
	pos   int
	depth int
}

// peek skips white space and returns the byte that follows, 0 at the end.
func (s *scanner) peek() byte {
	for s.pos < len(s.data) {
		c := s.data[s.pos]
		if c > ' ' || c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
		s.pos++
	}
	return 0
}

// end tells whether nothing but white space is left.
func (s *scanner) end() bool {
	s.peek()
	return s.pos >= len(s.data)
}

func (s *scanner) fail(reason string) error {
	if s.pos >= len(s.data) {
		reason = "the file ends in the middle of an object"
	}
	return &syntaxError{offset: s.pos, reason: reason}
}

// mismatch is the error for a value that is not what the field wants.
func (s *scanner) mismatch(want string) error {
	var have string
	switch c := s.peek(); {
	case c == '{':
		have = "an object"
	case c == '[':
		have = "a list"
	case c == '"':
		have = "a string"
	case c == 't', c == 'f':
		have = "a boolean"
	case c == '-', c >= '0' && c <= '9':
		have = "a number"
	default:
		return s.fail("no JSON value begins like this")
	}
	return &fieldError{reason: fmt.Sprintf("is %s, should be %s", have, want)}
}

// null consumes a null, if that comes next.
func (s *scanner) null() bool {
	return s.peek() == 'n' && s.literal("null") == nil
}

func (s *scanner) literal(word string) error {
	if len(s.data)-s.pos < len(word) || string(s.data[s.pos:s.pos+len(word)]) != word {
		return s.fail("no JSON value begins like this")
	}
	s.pos += len(word)
	return nil
}

// enter begins an object or a list, which its caller ends with leave.
func (s *scanner) enter() error {
	if s.depth == maxDepth {
		return s.fail("values are nested too deep")
	}
	s.pos++
	s.depth++
	return nil
}

func (s *scanner) leave() { s.depth-- }

// object calls field for each member of an object; field consumes the value.
func (s *scanner) object(field func(key []byte) error) error {
	if s.null() {
		return nil
	}
	if s.peek() != '{' {
		return s.mismatch("an object")
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if s.peek() == '}' {
		s.pos++
		return nil
	}
	for {
		if s.peek() != '"' {
			return s.fail("a field name in double quotes should be here")
		}
		key, err := s.quoted()
		if err != nil {
			return err
		}
		if s.peek() != ':' {
			return s.fail("a ':' should be here")
		}
		s.pos++
		if err := field(key); err != nil {
			return under(string(key), err)
		}
		switch s.peek() {
		case ',':
			s.pos++
		case '}':
			s.pos++
			return nil
		default:
			return s.fail("a ',' or '}' should be here")
		}
	}
}

// list calls item for each item of a list; item consumes the value.
func (s *scanner) list(item func(i int) error) error {
	if s.null() {
		return nil
	}
	if s.peek() != '[' {
		return s.mismatch("a list")
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if s.peek() == ']' {
		s.pos++
		return nil
	}
	for i := 0; ; i++ {
		if err := item(i); err != nil {
			return under("["+strconv.Itoa(i)+"]", err)
		}
		switch s.peek() {
		case ',':
			s.pos++
		case ']':
			s.pos++
			return nil
		default:
			return s.fail("a ',' or ']' should be here")
		}
	}
}

// quoted reads the string that begins here. The result aliases the input where it can.
func (s *scanner) quoted() ([]byte, error) {
	start := s.pos
	escaped, err := s.skipQuoted()
	if err != nil {
		return nil, err
	}
	raw := s.data[start:s.pos]
	if !escaped {
		return raw[1 : len(raw)-1], nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, &syntaxError{offset: start, reason: "the string holds an escape that JSON doesn't know"}
	}
	return []byte(text), nil
}

// skipQuoted moves behind the string that begins here.
func (s *scanner) skipQuoted() (escaped bool, err error) {
	data := s.data
	for i := s.pos + 1; i < len(data); i++ {
		c := data[i]
		if c > '\\' {
			continue
		}
		switch {
		case c == '"':
			s.pos = i + 1
			return escaped, nil
		case c == '\\':
			escaped = true
			i++
		case c < ' ':
			s.pos = i
			return false, s.fail("a string holds a line break or another control character")
		}
	}
	s.pos = len(data)
	return false, s.fail("")
}

// text reads a string; the result is valid until the input changes, nil for null.
func (s *scanner) text() ([]byte, error) {
	if s.null() {
		return nil, nil
	}
	if s.peek() != '"' {
		return nil, s.mismatch("a string")
	}
	return s.quoted()
}

func (s *scanner) boolean(to *bool) error {
	switch s.peek() {
	case 'n':
		return s.literal("null")
	case 't':
		*to = true
		return s.literal("true")
	case 'f':
		*to = false
		return s.literal("false")
	}
	return s.mismatch("true or false")
}

func (s *scanner) int32(to *int32) error {
	if s.null() {
		return nil
	}
	if c := s.peek(); c != '-' && (c < '0' || c > '9') {
		return s.mismatch("a whole number")
	}
	digits, err := s.number()
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(string(digits), 10, 32)
	if err != nil {
		return &fieldError{reason: fmt.Sprintf("%.40s is no whole number in the range of a field", digits)}
	}
	*to = int32(n)
	return nil
}

// number moves behind the number that begins here and returns its text.
func (s *scanner) number() ([]byte, error) {
	start := s.pos
	if s.at('-') {
		s.pos++
	}
	ok := true
	if s.at('0') {
		s.pos++
	} else {
		ok = s.digits()
	}
	if ok && s.at('.') {
		s.pos++
		ok = s.digits()
	}
	if ok && (s.at('e') || s.at('E')) {
		s.pos++
		if s.at('+') || s.at('-') {
			s.pos++
		}
		ok = s.digits()
	}
	if !ok {
		return nil, s.fail("a digit should be here")
	}
	return s.data[start:s.pos], nil
}

func (s *scanner) at(c byte) bool { return s.pos < len(s.data) && s.data[s.pos] == c }

// digits moves behind the digits that begin here, and tells whether there are any.
func (s *scanner) digits() bool {
	start := s.pos
	for s.pos < len(s.data) && s.data[s.pos] >= '0' && s.data[s.pos] <= '9' {
		s.pos++
	}
	return s.pos > start
}

// skip moves behind the value that begins here, whatever it is, and checks its syntax on the way.
func (s *scanner) skip() error {
	switch c := s.peek(); {
	case c == '{':
		return s.object(func([]byte) error { return s.skip() })
	case c == '[':
		return s.list(func(int) error { return s.skip() })
	case c == '"':
		start := s.pos
		escaped, err := s.skipQuoted()
		if err == nil && escaped && !json.Valid(s.data[start:s.pos]) {
			return &syntaxError{offset: start, reason: "the string holds an escape that JSON doesn't know"}
		}
		return err
	case c == 't':
		return s.literal("true")
	case c == 'f':
		return s.literal("false")
	case c == 'n':
		return s.literal("null")
	case c == '-', c >= '0' && c <= '9':
		_, err := s.number()
		return err
	}
	return s.fail("no JSON value begins like this")
}
