package kube

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
)

// Protobuf is read as Kubernetes' own library writes it.
func TestBinary(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	encoder := protobuf.NewSerializer(scheme, scheme)
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", ResourceVersion: "8"}, Spec: corev1.PodSpec{NodeName: "n1"}}
	}
	var list bytes.Buffer
	err := encoder.Encode(&corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"},
		ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "more"}, Items: []corev1.Pod{*pod("a"), *pod("b")}}, &list)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	meta, err := readPage(list.Bytes(), true, func(r raw) {
		id, err := r.identify()
		if err != nil || id.version != "8" {
			t.Errorf("identity %+v: %v", id, err)
		}
		var p corev1.Pod
		if err := p.Unmarshal(r.data); err != nil || p.Spec.NodeName != "n1" {
			t.Errorf("pod %+v: %v", p, err)
		}
		names = append(names, id.name.String())
	})
	if err != nil || meta.ResourceVersion != "9" || meta.Continue != "more" || strings.Join(names, " ") != "shop/a shop/b" {
		t.Errorf("list %+v of %v: %v", meta, names, err)
	}

	var stream bytes.Buffer
	frames := protobuf.LengthDelimitedFramer.NewFrameWriter(&stream)
	for _, name := range []string{"a", "b"} {
		var object bytes.Buffer
		if err := encoder.Encode(pod(name), &object); err != nil {
			t.Fatal(err)
		}
		event := &metav1.WatchEvent{Type: "ADDED", Object: runtime.RawExtension{Raw: object.Bytes()}}
		if err := protobuf.NewRawSerializer(scheme, scheme).Encode(event, frames); err != nil {
			t.Fatal(err)
		}
	}
	whole := bytes.Clone(stream.Bytes())
	in := newEvents(&stream, true)
	for _, name := range []string{"a", "b"} {
		kind, r, err := in.next()
		if err != nil || kind != "ADDED" {
			t.Fatalf("event %s: %v", kind, err)
		}
		if id, err := r.identify(); err != nil || id.name != (model.Name{Namespace: "shop", Name: name}) {
			t.Errorf("identity %+v: %v", id, err)
		}
	}
	if _, _, err := in.next(); err != io.EOF {
		t.Errorf("end of the watch: %v", err)
	}
	for end := range len(whole) {
		in := newEvents(bytes.NewReader(whole[:end]), true)
		var err error
		for err == nil {
			_, _, err = in.next()
		}
		if end != 0 && end != len(whole)/2 && err == io.EOF {
			t.Errorf("a watch cut off after %d bytes of %d seems to have ended in good order", end, len(whole))
		}
	}
}

// sameIdentity compares the identity that we read with that of Kubernetes' own library.
func sameIdentity(t *testing.T, r raw) {
	var p metav1.PartialObjectMetadata
	if !r.binary || p.Unmarshal(r.data) != nil {
		return
	}
	id, err := r.identify()
	if want := (identity{model.Name{Namespace: p.Namespace, Name: p.Name}, p.ResourceVersion}); err != nil || id != want {
		t.Errorf("identity %+v, want %+v: %v", id, want, err)
	}
}

// Whatever a server sends, reading it can only fail with an error.
func FuzzWire(f *testing.F) {
	f.Add([]byte(`{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"}}]}`), false)
	f.Add(envelope(field(field(nil, 1, field(nil, 2, []byte("1"))), 2, field(nil, 1, field(nil, 1, []byte("a"))))), true)
	f.Add([]byte("\x00\x00\x00\x04k8s\x00"), true)
	f.Add([]byte(`{"type":"ADDED","object":7}`), false)
	var stream []byte
	for _, kind := range []string{"ADDED", "BOOKMARK", "ERROR"} {
		object := field(nil, 1, field(field(field(nil, 1, []byte("a")), 3, []byte("shop")), 6, []byte("7")))
		frame := field(field(nil, 1, []byte(kind)), 2, field(nil, 1, envelope(object)))
		stream = append(binary.BigEndian.AppendUint32(stream, uint32(len(frame))), frame...)
	}
	f.Add(stream, true)
	f.Fuzz(func(t *testing.T, data []byte, inBinary bool) {
		ledgers := make([]*ledger, len(kinds.All))
		take := func(r raw) {
			sameIdentity(t, r)
			for i, k := range kinds.All {
				if ledgers[i] == nil {
					ledgers[i] = newLedger(k.Kind, 0)
				}
				if r.binary && !k.Typed {
					continue
				}
				f := &follower{kind: &k}
				ledgers[i].put(f.decode(k.Places[0], r))
			}
		}
		_, _ = readPage(data, inBinary, take)
		in := newEvents(bytes.NewReader(data), inBinary)
		for {
			_, r, err := in.next()
			if err != nil {
				return
			}
			take(r)
		}
	})
}
