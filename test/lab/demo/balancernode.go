package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/test/lab/process"
	"sluice.dev/sluice/test/netns"
)

// The balancer's program has a network of its own, and so the addresses that it has by default.
const (
	balancerAPI   = "http://127.0.0.1:5555/farms"
	balancerReady = "http://127.0.0.1:10256/readyz"
	balancerKey   = "demo"
	balancerName  = "balance" // of its log
)

func (n *balancerNet) socket() string { return filepath.Join(n.dir, "agent.sock") }

// balance starts the balancer and returns once it has programmed its farms, with the time that this
// took.
func (n *balancerNet) balance(ctx context.Context) (time.Duration, error) {
	config, err := filepath.Abs(n.config.Farms)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	err = process.Start(n.balancer, n.dir, balancerName, []string{n.config.Sluice, "balance", "--config", config, "--key", balancerKey, "--socket", n.socket()})
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, tellTime)
	defer cancel()
	for {
		page, err := get(ctx, n.balancer.Name, balancerReady)
		if err == nil && strings.TrimSpace(page) == "ok" {
			return time.Since(begin), nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollTime):
		}
		if ctx.Err() != nil || !process.Find(n.dir, balancerName).Alive() {
			return 0, fmt.Errorf("the balancer does not become ready:\n%s", process.Tail(n.dir, balancerName))
		}
	}
}

// killBalancer ends the balancer's program as a crash would.
func (n *balancerNet) killBalancer() error { return process.Find(n.dir, balancerName).Kill() }

// run runs a command of sluice on the balancer, and returns what it prints.
func (n *balancerNet) run(ctx context.Context, args ...string) (string, error) {
	var out, notes bytes.Buffer
	cmd := exec.CommandContext(ctx, n.config.Sluice, append(args, "--socket", n.socket())...)
	cmd.Stdout, cmd.Stderr = &out, &notes
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("run sluice %s: %w: %s", strings.Join(args, " "), err, notes.String())
	}
	return out.String(), nil
}

// await waits until a backend of the first farm has a state, and the kernel knows.
func (n *balancerNet) await(ctx context.Context, backend, state string) error {
	ctx, cancel := context.WithTimeout(ctx, tellTime)
	defer cancel()
	for {
		b, err := n.backend(ctx, backend)
		if err == nil && b.State == state {
			return agent.NewClient(n.socket()).Sync(ctx)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s is %s: it is %q: %w", backend, state, b.State, ctx.Err())
		case <-time.After(pollTime):
		}
	}
}

// set gives a backend a state by the API, and returns how long the answer took.
func (n *balancerNet) set(ctx context.Context, farm, backend, state string) (time.Duration, error) {
	type object = map[string]any
	body, err := json.Marshal(object{"farms": []object{{"name": farm, "backends": []object{{"name": backend, "state": state}}}}})
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	text, err := put(ctx, n.balancer, balancerAPI, body)
	if err != nil {
		return 0, fmt.Errorf("set %s of %s %s: %w: %s", backend, farm, state, err, text)
	}
	return time.Since(begin), nil
}

// put sends a request to the balancer's API from a network namespace, and returns the answer.
func put(ctx context.Context, from *netns.NS, url string, body []byte) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Key", balancerKey)
	resp, err := client(from).Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", resp.StatusCode)
	}
	return string(text), err
}
