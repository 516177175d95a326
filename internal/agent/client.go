package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"sluice.dev/sluice/internal/compile"
)

// ErrNoAgent is wrapped when nobody answers on the socket.
var ErrNoAgent = errors.New("no agent answers there")

// Client talks to an agent over its Unix socket. It is safe for concurrent use.
type Client struct {
	socket string
	http   *http.Client
}

// NewClient returns a client for the agent on that socket; it connects with each call.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &Client{socket, &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// Status asks for a snapshot of the agent.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return call[Status](ctx, c, http.MethodGet, "status")
}

// Services asks for the services as they are wanted on the agent's node.
func (c *Client) Services(ctx context.Context) ([]compile.ServiceView, error) {
	return call[[]compile.ServiceView](ctx, c, http.MethodGet, "services")
}

// Plan asks what the agent would do to the kernel now.
func (c *Client) Plan(ctx context.Context) (Plan, error) {
	return call[Plan](ctx, c, http.MethodGet, "plan")
}

// Sync returns once all that the source holds now is in the kernel, as Agent.Sync
// does. The agent gives up a little before ctx's deadline, so that it can say why.
func (c *Client) Sync(ctx context.Context) error {
	what := "sync"
	if end, ok := ctx.Deadline(); ok {
		what += "?timeout=" + url.QueryEscape((time.Until(end) * 9 / 10).String())
	}
	_, err := call[struct{}](ctx, c, http.MethodPost, what)
	return err
}

func call[T any](ctx context.Context, c *Client, method, path string) (T, error) {
	var v T
	what, _, _ := strings.Cut(path, "?")
	req, err := http.NewRequestWithContext(ctx, method, "http://agent/v1/"+path, nil)
	if err != nil {
		return v, err
	}
	resp, err := c.http.Do(req)
	switch {
	case errors.Is(err, os.ErrPermission):
		return v, fmt.Errorf("open %s: %w: only its owner may; run this as root", c.socket, os.ErrPermission)
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return v, fmt.Errorf("open %s: %w: start one with 'sluice run', or name its socket with --socket", c.socket, ErrNoAgent)
	case err != nil:
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err // the URL is of our own making and tells nobody anything
		}
		return v, fmt.Errorf("ask agent for %s: %w", what, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return v, refusal(resp)
	}
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		return v, fmt.Errorf("read the agent's answer to %s: %w", what, err)
	}
	return v, nil
}

// refusal makes the error of an answer that is not 200.
func refusal(resp *http.Response) error {
	var f failure
	if err := json.NewDecoder(resp.Body).Decode(&f); err != nil {
		return fmt.Errorf("the agent answered %s", resp.Status)
	}
	if len(f.Issues) > 0 {
		return &FaultError{f.Issues}
	}
	return errors.New(f.Error)
}
