package demo

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/netns"
)

// sluice runs a command of the lab's sluice on a node, and returns what it prints. Its exit status
// is part of the answer: only printing nothing is an error.
func sluice(ctx context.Context, l *lab.Lab, node string, args ...string) (string, error) {
	var out, notes bytes.Buffer
	cmd := exec.CommandContext(ctx, l.Sluice, args...)
	cmd.Stdout, cmd.Stderr = &out, &notes
	err := l.Start(node, cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if out.Len() == 0 {
		return "", fmt.Errorf("run sluice %s on %s: %w: %s", strings.Join(args, " "), node, err, notes.String())
	}
	return out.String(), nil
}

// drop is a line of `sluice drops`, and the node that printed it.
type drop struct{ node, text string }

// watchDrops runs `sluice drops` on nodes until ctx ends, and returns once they miss nothing any
// more. The channel gets their lines; stop ends them, and returns once they have ended.
func watchDrops(ctx context.Context, l *lab.Lab, nodes []string) (lines <-chan drop, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	all := make(chan drop)
	var ends []func()
	stop = func() {
		cancel()
		for _, end := range ends {
			end()
		}
	}
	for _, node := range nodes {
		end, err := watchNode(ctx, l, node, all)
		if err != nil {
			stop()
			return nil, nil, fmt.Errorf("run sluice drops on %s: %w", node, err)
		}
		ends = append(ends, end)
	}
	return all, stop, nil
}

func watchNode(ctx context.Context, l *lab.Lab, node string, lines chan<- drop) (end func(), err error) {
	cmd := exec.CommandContext(ctx, l.Sluice, "drops")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	notes, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := l.Start(node, cmd); err != nil {
		return nil, err
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for text := bufio.NewScanner(out); text.Scan(); {
			select {
			case lines <- drop{node, text.Text()}:
			case <-ctx.Done():
			}
		}
	}()
	end = func() {
		<-read
		_ = cmd.Wait() // it was killed
	}
	said, err := bufio.NewReader(notes).ReadString('\n') // that it watches
	if err != nil {
		end()
		return nil, fmt.Errorf("it does not say that it watches: %q: %w", said, err)
	}
	return end, nil
}

// agents returns the clients of the nodes' agents, by node; those of nodes without one are left
// out.
func agents(ctx context.Context, l *lab.Lab) map[string]*agent.Client {
	clients := map[string]*agent.Client{}
	for _, n := range l.Status(ctx).Nodes {
		if n.Socket != "" {
			clients[n.Name] = agent.NewClient(n.Socket)
		}
	}
	return clients
}

// get reads a page from a network namespace.
func get(ctx context.Context, from, url string) (string, error) {
	ns, err := netns.Open(from)
	if err != nil {
		return "", err
	}
	defer ns.Close()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := client(ns).Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	page, err := io.ReadAll(resp.Body)
	return string(page), err
}

// client returns an HTTP client in a network namespace.
func client(ns *netns.NS) *http.Client {
	return &http.Client{Timeout: answerTime, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = ns.Do(func() error { conn, err = new(net.Dialer).DialContext(ctx, network, address); return err })
			return conn, err
		}}}
}
