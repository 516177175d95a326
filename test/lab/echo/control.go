package echo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// Run serves pods until ctx ends, as Set commands over the Unix socket at the given path.
func Run(ctx context.Context, socket string) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("serve: %w", err)
	}
	ln, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	var s Server
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /pods", func(w http.ResponseWriter, r *http.Request) {
		var pods []Pod
		if err := json.NewDecoder(r.Body).Decode(&pods); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := s.Set(pods); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
		}
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	err = srv.Serve(ln)
	if ctx.Err() != nil {
		return s.Close()
	}
	return errors.Join(err, s.Close())
}

// Set tells the server process behind a Unix socket which pods to serve. The error is that of
// Server.Set, or says that nothing listens.
func Set(ctx context.Context, socket string, pods []Pod) error {
	body, err := json.Marshal(pods)
	if err != nil {
		return fmt.Errorf("serve pods: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://serve/pods", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("serve pods: %w", err)
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("serve pods: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("serve pods: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return &SetError{string(bytes.TrimSpace(text))}
	}
	return nil
}

// SetError names the pods or ports that a server process could not serve. It serves the others.
type SetError struct{ reason string }

func (e *SetError) Error() string { return e.reason }
