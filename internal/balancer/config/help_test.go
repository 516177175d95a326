package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// kernel is a Kernel which has whatever the store was told, unless it is to refuse a farm.
type kernel struct {
	store   *store.Store
	mu      sync.Mutex
	refuse  string        // a farm that it refuses
	faulty  string        // a farm that it finds at fault
	gate    chan struct{} // if it is not nil, Sync waits for a value
	live    []model.LiveSession
	forgets []model.FlowValues
}

var errRefused = errors.New("no such device")

func (k *kernel) Sync(ctx context.Context, objects []model.Ref) error {
	if k.gate != nil {
		select {
		case <-k.gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.refuse != "" && farmIn(k.store, k.refuse) != nil {
		return errRefused
	}
	if f := farmIn(k.store, k.faulty); f != nil && slices.Contains(objects, f.Ref()) {
		return &FaultsError{[]model.Issue{{Object: f.Ref(), Reason: "no such network"}}}
	}
	return nil
}

func (k *kernel) Sessions(context.Context, string) ([]model.LiveSession, error) { return k.live, nil }

func (k *kernel) Forget(_ context.Context, _ string, clients []model.FlowValues) error {
	k.forgets = append(k.forgets, clients...)
	return nil
}

func farmIn(s *store.Store, name string) (f *model.Farm) {
	s.Read(func(v *store.View) {
		f, _ = v.Object(model.Ref{Kind: model.FarmKind, Name: model.Name{Name: name}}).(*model.Farm)
	})
	return f
}

func listIn(s *store.Store, name string) (l *model.FarmList) {
	s.Read(func(v *store.View) {
		l, _ = v.Object(model.Ref{Kind: model.FarmListKind, Name: model.Name{Name: name}}).(*model.FarmList)
	})
	return l
}

// bed is a running source with its store and kernel.
type bed struct {
	*Source
	t      testing.TB
	store  *store.Store
	kernel *kernel
	stop   func()
}

const secret = "open sesame"

func start(t testing.TB, o Options) *bed {
	b := prepare(t, o)
	b.run()
	return b
}

func prepare(t testing.TB, o Options) *bed {
	o.Key = secret
	st := store.New()
	b := &bed{t: t, store: st, kernel: &kernel{store: st}, Source: New(st, o)}
	b.Use(b.kernel)
	return b
}

func (b *bed) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- b.Run(ctx) }()
	var once sync.Once
	b.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				b.t.Error(err)
			}
		})
	}
	b.t.Cleanup(b.stop)
	if err := b.Flush(ctx); err != nil {
		b.t.Fatal(err)
	}
}

// ask makes a request, and returns the status and the text of the answer.
func (b *bed) ask(method, path, body string) (int, string) {
	q := httptest.NewRequest(method, path, strings.NewReader(body))
	q.Header.Set("Key", secret)
	w := httptest.NewRecorder()
	b.Handler().ServeHTTP(w, q)
	return w.Code, w.Body.String()
}

// do makes a request that has to succeed.
func (b *bed) do(method, path, body string) {
	b.t.Helper()
	if code, text := b.ask(method, path, body); code != 200 || text != `{"response": "success"}` {
		b.t.Fatalf("%s %s %s: %d %s", method, path, body, code, text)
	}
}

// web is a farm named web with two backends, and more attributes.
func web(more string) string {
	return `{"farms":[{"name":"web","virtual-addr":"192.0.2.1","virtual-ports":"80","mode":"dnat",` + more +
		`"backends":[{"name":"a","ip-addr":"10.0.0.1","port":"8080"},{"name":"b","ip-addr":"10.0.0.2","port":"8080"}]}]}`
}

// many is a document of n farms with three backends each.
func many(n int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"farms":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"name":"farm%d","family":"ipv4","virtual-addr":"10.%d.%d.%d","virtual-ports":"80","mode":"dnat","protocol":"tcp","scheduler":"weight","state":"up","health-check":{"type":"tcp"},"backends":[`, i, i>>16, i>>8&255, i&255)
		for j := range 3 {
			if j > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `{"name":"bck%d","ip-addr":"172.16.%d.%d","port":"80","weight":"5","priority":"1","state":"up"}`, j, i&255, j+1)
		}
		b.WriteString("]}")
	}
	b.WriteString("]}")
	return b.Bytes()
}
