package kube

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
)

// This file reads the two encodings of an API server's answers. See "Kubernetes API Concepts"
// (https://kubernetes.io/docs/reference/using-api/api-concepts/) for both.

const (
	mediaJSON     = "application/json"
	mediaProtobuf = "application/vnd.kubernetes.protobuf"

	// maxFrame bounds one event of a watch; etcd holds objects of some 1.5 MiB.
	maxFrame = 64 << 20
)

// raw is one object as the server wrote it.
type raw struct {
	data   []byte
	binary bool // protobuf, without its envelope, rather than JSON
}

// isBinary reads an answer's encoding from its Content-Type.
func isBinary(contentType string) bool { return strings.HasPrefix(contentType, mediaProtobuf) }

// magic precedes each object in protobuf outside of lists; it is followed by a message of type
// runtime.Unknown, which contains the object.
var magic = []byte("k8s\x00")

// unwrap takes an object out of its envelope.
func unwrap(data []byte) ([]byte, error) {
	message, ok := bytes.CutPrefix(data, magic)
	if !ok {
		return nil, errors.New("it does not begin as Kubernetes' protobuf does")
	}
	const rawField = 2
	var inner []byte
	err := fields(message, func(number protowire.Number, value []byte) error {
		if number == rawField {
			inner = value
		}
		return nil
	})
	return inner, err
}

// fields calls f with each field of a message that is itself a message, a string, or bytes.
func fields(message []byte, f func(protowire.Number, []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
				return protowire.ParseError(n)
			}
			message = message[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if err := f(number, value); err != nil {
			return err
		}
		message = message[n:]
	}
	return nil
}

// readPage calls item with each object of a page, and returns the list's metadata: its version, and
// the token for the next page.
func readPage(data []byte, inBinary bool, item func(raw)) (metav1.ListMeta, error) {
	var meta metav1.ListMeta
	var err error
	if inBinary {
		meta, err = readBinaryPage(data, item)
	} else {
		meta, err = readTextPage(data, item)
	}
	if err == nil && meta.ResourceVersion == "" {
		err = errors.New("it is no list, as it has no version")
	}
	if err != nil {
		return meta, fmt.Errorf("read answer: %w", err)
	}
	return meta, nil
}

func readBinaryPage(data []byte, item func(raw)) (meta metav1.ListMeta, err error) {
	list, err := unwrap(data)
	if err != nil {
		return meta, err
	}
	const metaField, itemsField = 1, 2 // in every list
	err = fields(list, func(number protowire.Number, value []byte) error {
		switch number {
		case metaField:
			return meta.Unmarshal(value)
		case itemsField:
			item(raw{value, true})
		}
		return nil
	})
	return meta, err
}

func readTextPage(data []byte, item func(raw)) (metav1.ListMeta, error) {
	var list struct {
		Metadata metav1.ListMeta   `json:"metadata"`
		Items    []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return list.Metadata, err
	}
	for _, text := range list.Items {
		item(raw{text, false})
	}
	return list.Metadata, nil
}

// events reads a watch, one event at a time.
type events struct {
	text *json.Decoder // nil: the watch is in protobuf
	// In holds messages of type WatchEvent, each preceded by its length.
	in     *bufio.Reader
	buffer []byte
}

func newEvents(body io.Reader, inBinary bool) *events {
	if inBinary {
		return &events{in: bufio.NewReader(body)}
	}
	return &events{text: json.NewDecoder(body)}
}

// next returns io.EOF when the server has ended the watch properly.
func (e *events) next() (kind string, object raw, err error) {
	var event metav1.WatchEvent
	if e.text != nil {
		err := e.text.Decode(&event)
		return event.Type, raw{event.Object.Raw, false}, err
	}
	frame, err := e.frame()
	if err != nil {
		return "", raw{}, err
	}
	var inner []byte
	if err = event.Unmarshal(frame); err == nil {
		inner, err = unwrap(event.Object.Raw)
	}
	if err != nil {
		return "", raw{}, fmt.Errorf("read event: %w", err)
	}
	return event.Type, raw{inner, true}, nil
}

// frame reads the next message in protobuf, which is valid until the next call.
func (e *events) frame() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(e.in, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxFrame {
		return nil, fmt.Errorf("read event: its %d bytes are more than %d", size, maxFrame)
	}
	if int(size) > cap(e.buffer) {
		e.buffer = make([]byte, size)
	}
	if _, err := io.ReadFull(e.in, e.buffer[:size]); err != nil {
		return nil, io.ErrUnexpectedEOF
	}
	return e.buffer[:size], nil
}

// identity tells an object of the API, and its versions, from others.
type identity struct {
	name    model.Name
	version string
}

// sum returns a hash that tells versions of an object apart, and objects at one place from those at
// another.
func (r raw) sum(at kinds.Resource) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	_, _ = h.WriteString(at.Group) // never fails, nor does Write
	_, _ = h.WriteString(at.Version)
	_, _ = h.Write(r.data)
	return h.Sum64()
}

var seed = maphash.MakeSeed()

// identify reads nothing but the identity of an object, so that a fault can name the object however
// odd the rest of it is.
func (r raw) identify() (identity, error) {
	var o struct {
		Metadata struct {
			Name            string `json:"name"`
			Namespace       string `json:"namespace"`
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	m := &o.Metadata
	if r.binary {
		return r.identifyBinary()
	}
	if err := json.Unmarshal(r.data, &o); err != nil {
		return identity{}, err
	}
	return identity{model.Name{Namespace: m.Namespace, Name: m.Name}, m.ResourceVersion}, nil
}

// identifyBinary finds the identity in the metadata.
func (r raw) identifyBinary() (id identity, err error) {
	const metaField, nameField, namespaceField, versionField = 1, 1, 3, 6 // of every object, and of its ObjectMeta
	err = fields(r.data, func(number protowire.Number, value []byte) error {
		if number != metaField {
			return nil
		}
		return fields(value, func(number protowire.Number, value []byte) error {
			switch number {
			case nameField:
				id.name.Name = string(value)
			case namespaceField:
				id.name.Namespace = shared(string(value))
			case versionField:
				id.version = string(value)
			}
			return nil
		})
	})
	if err != nil {
		return identity{}, err
	}
	return id, nil
}
