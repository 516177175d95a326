package connlimit

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// serve serves by a limit of three connections: a request for /slow is answered once release is
// closed.
func serve(t *testing.T, secure bool) (limit *Limit, url string, release chan struct{}) {
	t.Helper()
	limit, release = &Limit{most: 3}, make(chan struct{})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer Answer(r)()
		if r.URL.Path == "/slow" {
			<-release
		}
		_, _ = io.WriteString(w, "hello")
	}))
	s.Listener, s.Config.ConnContext = limit.Listen(s.Listener), Context
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return limit, s.URL, release
}

// get asks on a connection of its own.
func get(ctx context.Context, url string) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	a, err := client.Do(q)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	if text, err := io.ReadAll(a.Body); err != nil || string(text) != "hello" {
		return fmt.Errorf("it answers %q, %w", text, err)
	}
	return nil
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("does not happen: %s", what)
		}
	}
}

// However many connections there are, the newest is answered, the oldest are closed, and one that
// is being answered stays: by TLS, too.
func TestConnectionsAreBounded(t *testing.T) {
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			limit, url, release := serve(t, secure)
			slow := make(chan error, 1)
			go func() { slow <- get(context.Background(), url+"/slow") }()
			eventually(t, "it is being answered", func() bool {
				limit.mu.Lock()
				defer limit.mu.Unlock()
				return limit.conns.Len() == 1 && limit.conns.Front().Value.(*conn).answered
			})
			address := url[len("http://"):]
			if secure {
				address = url[len("https://"):]
			}
			var open atomic.Int64
			for range 20 {
				c, err := net.Dial("tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n") // an error is that of one who was shown the door
				open.Add(1)
				go func() { _, _ = io.Copy(io.Discard, c); open.Add(-1) }()
			}
			eventually(t, "all but two are closed", func() bool { return open.Load() <= 2 })
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := get(ctx, url); err != nil {
				t.Errorf("a new connection: %v", err)
			}
			close(release)
			if err := <-slow; err != nil {
				t.Errorf("the one that was being answered: %v", err)
			}
			limit.mu.Lock()
			defer limit.mu.Unlock()
			if n := limit.conns.Len(); n > 3 {
				t.Errorf("%d connections are counted", n)
			}
		})
	}
}
