package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// syntaxError means that what follows can't be made sense of.
type syntaxError struct {
	offset int
	reason string
}

func (e *syntaxError) Error() string { return e.reason }

// fieldError means that a field of a well-formed object has a value of the
// wrong type.
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

// scanner reads JSON from memory, one value after the other, as its caller
// asks for them: nothing is built that nobody wants. It reads what
// encoding/json reads, with case-sensitive field names. A null counts as a
// value that isn't there.
type scanner struct {
	data []byte
	base int // where in data dec began
	dec  *jsontext.Decoder
}

// lenient has jsontext accept what encoding/json does.
var lenient = [...]jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// begin reads data from its start.
func (s *scanner) begin(data []byte) {
	s.data = data
	s.seek(0)
}

// seek goes to an offset where a value begins. The values that hold it can't be read on.
func (s *scanner) seek(at int) {
	s.base = at
	if s.dec == nil {
		s.dec = new(jsontext.Decoder)
	}
	s.dec.Reset(bytes.NewBuffer(s.data[at:]), lenient[:]...)
}

// pos is the offset behind what was read last.
func (s *scanner) pos() int { return s.base + int(s.dec.InputOffset()) }

// start is the offset where the next value begins.
func (s *scanner) start() int {
	between := " \t\r\n"
	if s.dec.StackDepth() > 0 {
		between += ",:"
	}
	return len(s.data) - len(bytes.TrimLeft(s.data[s.pos():], between))
}

// end tells whether nothing but white space is left.
func (s *scanner) end() bool { return s.start() == len(s.data) }

// fault is err with its place. What it says of the JSON stays as jsontext says it.
func (s *scanner) fault(err error) error {
	e, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &syntaxError{offset: len(s.data), reason: "the file ends in the middle of an object"}
	case ok:
		return &syntaxError{offset: s.base + int(e.ByteOffset), reason: e.Err.Error()}
	}
	return err
}

// mismatch is the error for a value that is not what the field wants.
func (s *scanner) mismatch(want string) error {
	have := map[jsontext.Kind]string{'{': "an object", '[': "a list", '"': "a string", 't': "a boolean", 'f': "a boolean", '0': "a number"}[s.dec.PeekKind()]
	if have == "" {
		return s.skip() // fails, as there is no value
	}
	return &fieldError{reason: fmt.Sprintf("is %s, should be %s", have, want)}
}

// token consumes a token that peeking has shown.
func (s *scanner) token() error {
	_, err := s.dec.ReadToken()
	if err != nil {
		return s.fault(err)
	}
	return nil
}

// null consumes a null, if that comes next.
func (s *scanner) null() bool { return s.dec.PeekKind() == 'n' && s.token() == nil }

// object calls field for each member of an object; field consumes the value.
func (s *scanner) object(field func(key []byte) error) error {
	if s.null() {
		return nil
	}
	if s.dec.PeekKind() != '{' {
		return s.mismatch("an object")
	}
	if err := s.token(); err != nil {
		return err
	}
	for s.dec.PeekKind() != '}' {
		key, err := s.quoted()
		if err != nil {
			return err
		}
		if err := field(key); err != nil {
			return under(string(key), err)
		}
	}
	return s.token()
}

// list calls item for each item of a list; item consumes the value.
func (s *scanner) list(item func(i int) error) error {
	if s.null() {
		return nil
	}
	if s.dec.PeekKind() != '[' {
		return s.mismatch("a list")
	}
	if err := s.token(); err != nil {
		return err
	}
	for i := 0; s.dec.PeekKind() != ']'; i++ {
		if s.dec.PeekKind() == 0 {
			return s.token()
		}
		if err := item(i); err != nil {
			return under("["+strconv.Itoa(i)+"]", err)
		}
	}
	return s.token()
}

// quoted reads the string that comes next. The result aliases the input where it can.
func (s *scanner) quoted() ([]byte, error) {
	v, err := s.dec.ReadValue()
	if err != nil {
		return nil, s.fault(err)
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return v[1 : len(v)-1], nil
	}
	text, _ := jsontext.AppendUnquote(nil, v) // fails for invalid UTF-8 alone, which it replaces
	return text, nil
}

// text reads a string; the result is valid until the input changes, nil for null.
func (s *scanner) text() ([]byte, error) {
	if s.null() {
		return nil, nil
	}
	if s.dec.PeekKind() != '"' {
		return nil, s.mismatch("a string")
	}
	return s.quoted()
}

func (s *scanner) boolean(to *bool) error {
	switch k := s.dec.PeekKind(); k {
	case 'n':
	case 't', 'f':
		*to = k == 't'
	default:
		return s.mismatch("true or false")
	}
	return s.token()
}

func (s *scanner) int32(to *int32) error {
	if s.null() {
		return nil
	}
	if s.dec.PeekKind() != '0' {
		return s.mismatch("a whole number")
	}
	digits, err := s.dec.ReadValue()
	if err != nil {
		return s.fault(err)
	}
	n, err := strconv.ParseInt(string(digits), 10, 32)
	if err != nil {
		return &fieldError{reason: fmt.Sprintf("%.40s is no whole number in the range of a field", digits)}
	}
	*to = int32(n)
	return nil
}

// skip moves behind the value that comes next, whatever it is, and checks its syntax on the way.
func (s *scanner) skip() error {
	if err := s.dec.SkipValue(); err != nil {
		return s.fault(err)
	}
	return nil
}
