package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const slicesPath = "/apis/discovery.k8s.io/v1/endpointslices"

// Watch is a bare client of the API. It watches EndpointSlices, in protobuf as usual, and only
// records when each version arrived. No client that watches can see a change earlier.
type Watch struct {
	cancel  context.CancelFunc
	ended   chan struct{}
	version string // the last one seen

	mu   sync.Mutex
	news chan struct{} // closed and replaced with each event
	seen map[string]time.Time
	err  error // why it ended
}

// Watch starts a client with a connection of its own, from the present version. Close it.
func (s *Server) Watch(ctx context.Context) (*Watch, error) {
	version, err := s.latest(ctx)
	if err != nil {
		return nil, err
	}
	client, err := s.newClient()
	if err != nil {
		return nil, err
	}
	under, cancel := context.WithCancel(context.WithoutCancel(ctx))
	events, err := s.events(under, client, version)
	if err != nil {
		cancel()
		return nil, err
	}
	w := &Watch{cancel: cancel, ended: make(chan struct{}), news: make(chan struct{}), seen: map[string]time.Time{}, version: version}
	go func() {
		defer close(w.ended)
		defer client.CloseIdleConnections()
		for err == nil {
			w.read(events)
			// The server ends a watch that does not keep up with a burst, like that of any client.
			// Go on from the last version.
			events, err = s.events(under, client, w.version)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.err = err
		close(w.news)
	}()
	return w, nil
}

// events requests the events after a version.
func (s *Server) events(ctx context.Context, client *http.Client, version string) (io.ReadCloser, error) {
	query := url.Values{"watch": {"1"}, "resourceVersion": {version}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+slicesPath+"?"+query.Encode(), nil)
	if err != nil {
		return nil, fmt.Errorf("watch EndpointSlices: %w", err)
	}
	req.Header.Set("Accept", "application/vnd.kubernetes.protobuf;stream=watch")
	resp, err := client.Do(req)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.Join(errors.New(resp.Status), resp.Body.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("watch EndpointSlices: %w", err)
	}
	return resp.Body, nil
}

// latest returns the version of the list of EndpointSlices.
func (s *Server) latest(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+slicesPath+"?limit=1", nil)
	if err != nil {
		return "", fmt.Errorf("list EndpointSlices: %w", err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return "", fmt.Errorf("list EndpointSlices: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	var list identity
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return "", fmt.Errorf("list EndpointSlices: %w", err)
	}
	return list.Metadata.ResourceVersion, nil
}

// read records events until the watch ends.
func (w *Watch) read(events io.ReadCloser) {
	defer func() { _ = events.Close() }()
	for in := bufio.NewReaderSize(events, 1<<16); ; {
		frame, err := next(in)
		now := time.Now()
		var version string
		if err == nil {
			version, err = versionOf(frame)
		}
		if err != nil || version == "" { // an error event has none; the next request reports the error
			return
		}
		w.version = version
		w.mu.Lock()
		w.seen[version] = now
		close(w.news)
		w.news = make(chan struct{})
		w.mu.Unlock()
	}
}

// next reads an event, which follows its length.
func next(in io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(head[:]))
	_, err := io.ReadFull(in, frame)
	return frame, err
}

// versionOf returns the version of the object in an event.
func versionOf(frame []byte) (string, error) {
	var event metav1.WatchEvent
	if err := event.Unmarshal(frame); err != nil {
		return "", err
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(bytes.TrimPrefix(event.Object.Raw, []byte("k8s\x00"))); err != nil {
		return "", err
	}
	var o metav1.PartialObjectMetadata
	err := o.Unmarshal(envelope.Raw)
	return o.ResourceVersion, err
}

// Seen waits until a version of an object has arrived and returns when that was. It can be called
// once for each version.
func (w *Watch) Seen(ctx context.Context, version string) (time.Time, error) {
	for {
		w.mu.Lock()
		at, ok := w.seen[version]
		delete(w.seen, version)
		news, err := w.news, w.err
		w.mu.Unlock()
		switch {
		case ok:
			return at, nil
		case err != nil:
			return time.Time{}, fmt.Errorf("watch EndpointSlices: %w", err)
		}
		select {
		case <-news:
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("watch EndpointSlices: version %s has not come: %w", version, ctx.Err())
		}
	}
}

// Close ends the watch.
func (w *Watch) Close() {
	w.cancel()
	<-w.ended
}
