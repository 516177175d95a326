package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	address "sluice.dev/sluice/internal/addresses/compile"
	"sluice.dev/sluice/internal/kernel/peer"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/question"
	services "sluice.dev/sluice/internal/services/compile"
)

// ErrNoAgent is wrapped when nothing answers on the socket.
var ErrNoAgent = errors.New("no agent answers there")

// answerPatience is the time-out of an answer that does not wait for the kernel. A comparison of
// everything with the kernel may take four times as long.
const answerPatience = 15 * time.Second

// stoppedPatience is after how long a client looks whether the agent's process is stopped, which
// will answer nothing.
const stoppedPatience = time.Second

// Client talks to an agent over its Unix socket. It is safe for concurrent use. If the agent does
// not answer because it is stopped or hangs, the error names its process and wraps
// context.DeadlineExceeded.
type Client struct {
	socket   string
	http     *http.Client
	patience time.Duration
}

// NewClient returns a client for the agent on that socket. Each call connects anew.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &Client{socket, &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}, answerPatience}
}

// Status asks for a snapshot of the agent.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return call[Status](ctx, c, c.patience, http.MethodGet, "status")
}

// Services asks for the services that are wanted on the agent's node.
func (c *Client) Services(ctx context.Context) ([]services.ServiceView, error) {
	return call[[]services.ServiceView](ctx, c, c.patience, http.MethodGet, "services")
}

// Service asks for one service with its endpoints.
func (c *Client) Service(ctx context.Context, name model.Name) (ServiceReport, error) {
	return call[ServiceReport](ctx, c, c.patience, http.MethodGet, "services/"+url.PathEscape(name.Namespace)+"/"+url.PathEscape(name.Name))
}

// Addresses asks for the addresses of pools that Services have.
func (c *Client) Addresses(ctx context.Context) ([]address.Address, error) {
	return call[[]address.Address](ctx, c, c.patience, http.MethodGet, "addresses")
}

// Fabric asks how the agent's node reaches the pods of others.
func (c *Client) Fabric(ctx context.Context) (FabricReport, error) {
	return call[FabricReport](ctx, c, c.patience, http.MethodGet, "fabric")
}

// Farms returns the farms of a balancer, with what they serve.
func (c *Client) Farms(ctx context.Context) ([]FarmReport, error) {
	return call[[]FarmReport](ctx, c, c.patience, http.MethodGet, "farms")
}

// BGP asks how it stands with the agent's BGP.
func (c *Client) BGP(ctx context.Context) (BGPReport, error) {
	return call[BGPReport](ctx, c, c.patience, http.MethodGet, "bgp")
}

// Names asks for the names of what can be asked about.
func (c *Client) Names(ctx context.Context) (Names, error) {
	return call[Names](ctx, c, c.patience, http.MethodGet, "names")
}

// Policies asks for the policies on the agent's node.
func (c *Client) Policies(ctx context.Context) ([]PolicyReport, error) {
	return call[[]PolicyReport](ctx, c, c.patience, http.MethodGet, "policies")
}

// Plan asks what the agent would do to the kernel now.
func (c *Client) Plan(ctx context.Context) (Plan, error) {
	return call[Plan](ctx, c, 4*c.patience, http.MethodGet, "plan")
}

// Sync returns once everything that the source holds now is in the kernel, as Agent.Sync does. The
// agent gives up a little before ctx's deadline, so that it can say why.
func (c *Client) Sync(ctx context.Context) error {
	what, wait := "sync", time.Duration(math.MaxInt64)
	if end, ok := ctx.Deadline(); ok {
		wait = time.Until(end)
		what += "?timeout=" + url.QueryEscape((wait * 9 / 10).String())
	}
	_, err := call[struct{}](ctx, c, wait, http.MethodPost, what)
	return err
}

// Explain asks what happens to a connection.
func (c *Client) Explain(ctx context.Context, q question.Question) (Explanation, error) {
	values := url.Values{"from": {q.From.String()}, "to": {q.To.String()}, "port": {q.Port}, "protocol": {q.Protocol}, "family": {strconv.Itoa(q.Family)}, "via": {q.Via}}
	if q.Suggest {
		values.Set("suggest", "")
	}
	return call[Explanation](ctx, c, c.patience, http.MethodGet, "why?"+values.Encode())
}

// Drops calls f with the agent's reports of dropped packets, until ctx ends or f returns an error,
// which Drops then returns. started, if set, is called as soon as no drop is missed any more.
func (c *Client) Drops(ctx context.Context, started func(), f func(DropReport) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(c.patience, func() { cancel(context.DeadlineExceeded) })
	resp, err := c.send(ctx, http.MethodGet, "drops")
	if err != nil {
		return err
	}
	silent.Stop()
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return refusal(resp)
	}
	if started != nil {
		started()
	}
	for reports := json.NewDecoder(resp.Body); ; {
		var r DropReport
		err := reports.Decode(&r)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return fmt.Errorf("read the agent's reports: %w: it may have stopped", err)
		case r.Error != "":
			return errors.New(r.Error)
		}
		if err := f(r); err != nil {
			return err
		}
	}
}

// call sends a request and decodes the answer, which may take as long as patience.
func call[T any](ctx context.Context, c *Client, patience time.Duration, method, path string) (T, error) {
	var v T
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	resp, err := c.send(ctx, method, path)
	if err != nil {
		return v, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return v, refusal(resp)
	}
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = c.silence(err)
		}
		return v, fmt.Errorf("read the agent's answer to %s: %w", nameOf(path), err)
	}
	return v, nil
}

// starter is what starts an agent that answers a request.
func starter(request string) string {
	switch request {
	case "farms":
		return "'sluice balance'"
	case "status", "plan", "sync":
		return "'sluice run', or a balancer with 'sluice balance'"
	}
	return "'sluice run'"
}

func nameOf(path string) string {
	what, _, _ := strings.Cut(path, "?")
	return what
}

// send sends a request; the caller closes the answer's body, and ends ctx.
func (c *Client) send(ctx context.Context, method, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://agent/v1/"+path, nil)
	if err != nil {
		return nil, err
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	look := time.AfterFunc(stoppedPatience, func() {
		if who, err := peer.At(c.socket); err == nil && who.Pid != 0 && stopped(who.Pid) {
			giveUp(context.DeadlineExceeded)
		}
	})
	resp, err := c.http.Do(req.WithContext(ctx))
	look.Stop()
	switch {
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("open %s: %w: only its owner may open it; run this command as root", c.socket, os.ErrPermission)
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("open %s: %w: start one with %s, or name its socket with --socket", c.socket, ErrNoAgent, starter(nameOf(path)))
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return nil, fmt.Errorf("ask agent for %s: %w", nameOf(path), c.silence(context.DeadlineExceeded))
	case err != nil:
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err // the URL is made up and means nothing to the user
		}
		return nil, fmt.Errorf("ask agent for %s: %w", nameOf(path), err)
	}
	return resp, nil
}

// silence adds to an error which process does not answer, and what to do.
func (c *Client) silence(err error) error {
	who, unknown := peer.At(c.socket)
	switch {
	case unknown != nil:
		return err
	case who.Pid == 0:
		return fmt.Errorf("%w: an agent in another container has %s open and does not answer: it is stopped or hangs: see its log, or restart it", err, c.socket)
	case stopped(who.Pid):
		return fmt.Errorf("%w: process %d has %s open and is stopped: continue it with 'kill -CONT %d'", err, who.Pid, c.socket, who.Pid)
	}
	return fmt.Errorf("%w: process %d has %s open and does not answer: it is overloaded or hangs: see its log, or restart it", err, who.Pid, c.socket)
}

// stopped reports whether a signal or a debugger has stopped a process.
func stopped(process int32) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", process))
	_, state, ok := strings.Cut(string(stat), ") ") // the program's name stands before it
	return err == nil && ok && (state[0] == 'T' || state[0] == 't')
}

// refusal makes the error for an answer that is not 200.
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
