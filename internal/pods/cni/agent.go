package cni

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

const (
	// again is the pause before an agent is asked again that does not answer: it may restart.
	again = 20 * time.Millisecond
	// patience is how long an answer may take that does not wait for the kernel.
	patience = 2 * time.Second
)

// admit tells the agent of a container's interface, and returns once the kernel has its policy and
// services. An agent that is away has until the time-out to come back.
func (c *agentConfig) admit(p *pod, device string, index int, addrs []netip.Addr) error {
	end := time.Now().Add(c.wait())
	for {
		// The agent gives up a little earlier, so that it can say why.
		query := url.Values{"namespace": {string(p.K8S_POD_NAMESPACE)}, "pod": {string(p.K8S_POD_NAME)}, "index": {strconv.Itoa(index)}, "timeout": {(time.Until(end) * 9 / 10).String()}}
		for _, a := range addrs {
			query.Add("address", a.String())
		}
		err := c.ask("PUT", "/"+device+"?"+query.Encode(), end)
		if err == nil {
			return nil
		}
		if refusal := (refused{}); errors.As(err, &refusal) || time.Until(end) <= again {
			return fault(types.ErrTryAgainLater, fmt.Sprintf("wait for policy and services of pod %s/%s: the agent at %s: see 'sluice status', or its log", p.K8S_POD_NAMESPACE, p.K8S_POD_NAME, c.Socket), err)
		}
		time.Sleep(again)
	}
}

// forget tells the agent that an interface is gone. An agent that is away sees it for itself.
func (c *agentConfig) forget(device string) {
	_ = c.ask("DELETE", "/"+device, time.Now().Add(patience))
}

// refused is an agent's answer that says no.
type refused struct{ error }

// ask sends a request about attachments to the agent. (An HTTP client would make the program twice
// as large.)
func (c *agentConfig) ask(method, what string, end time.Time) error {
	conn, err := net.DialTimeout("unix", c.Socket, time.Until(end))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(end) // a socket has it
	if _, err := fmt.Fprintf(conn, "%s /v1/attachments%s HTTP/1.1\r\nHost: agent\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", method, what); err != nil {
		return err
	}
	answer := bufio.NewReader(conn)
	line, err := answer.ReadString('\n')
	if err != nil {
		return fmt.Errorf("it does not answer: %w", err)
	}
	words := strings.Fields(line)
	if len(words) < 2 {
		return fmt.Errorf("it answers %q", line)
	}
	if code, err := strconv.Atoi(words[1]); err == nil && code == 200 {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(answer, 1<<20))
	var said struct{ Error string }
	if _, body, ok := strings.Cut(string(text), "\r\n\r\n"); err == nil && ok && json.Unmarshal([]byte(body), &said) == nil && said.Error != "" {
		return refused{errors.New(said.Error)}
	}
	return refused{fmt.Errorf("it answers %s", strings.TrimSpace(line))}
}
