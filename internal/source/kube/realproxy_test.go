package kube

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/test/lab/control"
)

// tamperingProxy is an HTTP proxy in front of a real API server, which it asks as the
// administrator.
type tamperingProxy struct {
	*httptest.Server
	mu     sync.Mutex
	meddle func(w http.ResponseWriter, r *http.Request, pass http.Handler)
}

func (c *realCluster) meddler(t *testing.T) *tamperingProxy {
	t.Helper()
	to, err := url.Parse(c.URL())
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(to)
	pass.Transport, pass.FlushInterval, pass.ErrorLog = c.admin.Transport, -1, quietLog
	m := &tamperingProxy{}
	m.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		meddle := m.meddle
		m.mu.Unlock()
		if meddle == nil {
			pass.ServeHTTP(w, r)
			return
		}
		meddle(w, r, pass)
	}))
	m.Config.ErrorLog = quietLog
	m.Start()
	t.Cleanup(func() { m.CloseClientConnections(); m.Close() })
	return m
}

// set sets how requests are handled from now on, and ends the present ones.
func (m *tamperingProxy) set(meddle func(w http.ResponseWriter, r *http.Request, pass http.Handler)) {
	m.mu.Lock()
	m.meddle = meddle
	m.mu.Unlock()
	m.CloseClientConnections()
}

func isWatch(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }

// short passes so many bytes of an answer and then ends it, properly or not.
type short struct {
	http.ResponseWriter
	left   int
	broken bool
}

func (s *short) Write(p []byte) (int, error) {
	n := min(len(p), s.left)
	s.left -= n
	if n, err := s.ResponseWriter.Write(p[:n]); err != nil {
		return n, err
	}
	s.Flush()
	if s.left == 0 {
		if s.broken {
			panic(http.ErrAbortHandler)
		}
		return n, fmt.Errorf("that is enough")
	}
	return len(p), nil
}

func (s *short) Flush() { s.ResponseWriter.(http.Flusher).Flush() }

// Whatever a proxy, or the server, does to watches: each change is delivered once, and nothing is
// withdrawn.
func TestRealWatchesMeddledWith(t *testing.T) {
	c := realAPI(t)
	c.put(t, namespaces, `{"metadata":{"name":"shop"}}`)
	c.put(t, services, service("web", 80))
	port := 80
	for _, meddling := range []struct {
		name string
		do   func(w http.ResponseWriter, r *http.Request, pass http.Handler)
		word string // of the issue, meanwhile
	}{
		{"ends at once", func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			w.Header().Set("Content-Type", mediaProtobuf+";stream=watch")
		}, "ends watches at once"},
		{"resets at once", func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			w.Header().Set("Content-Type", mediaProtobuf+";stream=watch")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, "ends watches at once"},
		{"410 as an answer", func(w http.ResponseWriter, r *http.Request, _ http.Handler) { fail(w, http.StatusGone, "too old") }, ""},
		{"429", func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			w.Header().Set("Retry-After", "0")
			http.Error(w, "not now", http.StatusTooManyRequests)
		}, "fails to serve"},
		{"500", func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			fail(w, http.StatusInternalServerError, "oh")
		}, "fails to serve"},
		{"a web page", func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			_, _ = w.Write([]byte("<html><h1>Log in</h1></html>"))
		}, "read"},
		{"redirected", func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			http.Redirect(w, r, "/login", http.StatusFound)
		}, "fails to serve"},
		{"late", func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
			select {
			case <-time.After(50 * time.Millisecond):
			case <-r.Context().Done():
			}
			pass.ServeHTTP(w, r)
		}, ""},
	} {
		t.Run(meddling.name, func(t *testing.T) {
			m := c.meddler(t)
			path := t.TempDir() + "/kubeconfig"
			write(t, path, c.config(m.URL, ""))
			f := followReal(t, path)
			f.waitSynced()
			f.wait("the service", func() bool { return f.port("web") == uint16(port) })
			events := f.delivered(func() {
				m.set(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
					if isWatch(r) && r.URL.Path == services {
						meddling.do(w, r, pass)
						return
					}
					pass.ServeHTTP(w, r)
				})
				if meddling.word != "" {
					f.waitIssue("Service", meddling.word)
				}
				port++
				c.put(t, services, fmt.Sprintf(webOn, port))
				if meddling.word != "" {
					f.flush() // changes come with it, however watches are doing
				}
				f.wait("a change", func() bool { return f.port("web") == uint16(port) })
				m.set(nil)
				f.waitNoIssue()
				port++
				c.put(t, services, fmt.Sprintf(webOn, port))
				f.wait("a change thereafter", func() bool { return f.port("web") == uint16(port) })
			})
			if events != 2 {
				t.Errorf("two changes came with %d events", events)
			}
		})
	}
}

// A watch may end after any of its bytes.
func TestRealWatchesCutShort(t *testing.T) {
	c := realAPI(t)
	c.put(t, namespaces, `{"metadata":{"name":"shop"}}`)
	c.put(t, services, service("web", 80))
	m := c.meddler(t)
	path := t.TempDir() + "/kubeconfig"
	write(t, path, c.config(m.URL, ""))
	f := followReal(t, path, func(t *timing) { t.first, t.last = time.Millisecond, time.Millisecond })
	f.waitSynced()
	port := 80
	change := func() {
		port++
		c.put(t, services, fmt.Sprintf(webOn, port))
	}
	events := f.delivered(func() {
		for length := 1; length < 1000; length += 37 {
			m.set(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
				if isWatch(r) && r.URL.Path == services {
					w = &short{w, length, length%2 == 0}
				}
				pass.ServeHTTP(w, r)
			})
			change()
			change()
			f.flush()
			f.wait("a change", func() bool { return f.port("web") == uint16(port) })
		}
		m.set(nil)
		change()
		f.wait("the last change", func() bool { return f.port("web") == uint16(port) })
	})
	if changes := port - 80; events > changes || events < changes/2 {
		t.Errorf("%d changes came with %d events", changes, events)
	}
	f.wait("nothing but watches ending", func() bool { return len(f.source.Status().Issues) == 0 })
}

// Bookmarks keep a kind whose objects do not change from falling behind the server's history.
func TestRealBookmarks(t *testing.T) {
	c := brokenAPI(t)
	names := c.shop(t)
	m := c.meddler(t)
	path := t.TempDir() + "/kubeconfig"
	write(t, path, c.config(m.URL, ""))
	f := followReal(t, path, func(t *timing) { t.watch = 3 * time.Second }) // a bookmark comes two seconds before the end
	f.waitSynced()
	f.waitOwn(names...)
	begun := f.versionOf("NetworkPolicy")
	c.put(t, services, fmt.Sprintf(webOn, 81))
	f.wait("a bookmark", func() bool { return isOlder(begun, f.versionOf("NetworkPolicy")) })
	c.compact(t)
	if events := f.delivered(func() { c.restart(t, control.APIServer); f.waitNoIssue(); f.flush() }); events != 0 {
		t.Errorf("nothing changed, and came with %d events", events)
	}
}

// versionOf returns the version up to which a kind has been followed.
func (f *fixture) versionOf(kind string) string {
	for _, x := range f.source.followers {
		if string(x.kind.Kind) == kind {
			x.mu.Lock()
			defer x.mu.Unlock()
			return x.version
		}
	}
	return ""
}
