package kubelet

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice.dev/sluice/test/netns"
)

// resultCount counts a probe's results up to its thresholds, as the API documents successThreshold
// and failureThreshold: so many equal results in a row.
type resultCount struct {
	success, failure int32 // the thresholds
	last             bool
	run              int32
}

func newResultCount(p *corev1.Probe) *resultCount {
	return &resultCount{success: max(p.SuccessThreshold, 1), failure: max(p.FailureThreshold, 1)}
}

// add counts a result and reports whether it reaches its threshold.
func (t *resultCount) add(ok bool) (reached bool) {
	if t.run > 0 && t.last == ok {
		t.run++
	} else {
		t.last, t.run = ok, 1
	}
	if ok {
		return t.run >= t.success
	}
	return t.run >= t.failure
}

// schedule returns when a probe runs. Unset fields have the API's defaults.
func schedule(p *corev1.Probe) (delay, period, timeout time.Duration) {
	seconds := func(n int32) time.Duration { return time.Duration(n) * time.Second }
	return seconds(p.InitialDelaySeconds), max(seconds(p.PeriodSeconds), time.Second), max(seconds(p.TimeoutSeconds), time.Second)
}

// prober probes a container's server from the node's network.
type prober struct {
	node   *netns.NS
	inside bool       // this process is in the node's namespace, so that it need not use a thread to enter it
	addr   netip.Addr // of the pod
	ctr    *corev1.Container
}

// probe runs a probe once; nil is success.
func (p *prober) probe(ctx context.Context, probe *corev1.Probe) error {
	_, _, timeout := schedule(probe)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	switch h := probe.ProbeHandler; {
	case h.Exec != nil:
		return p.exec(h.Exec.Command, timeout)
	case h.HTTPGet != nil && h.HTTPGet.Scheme != corev1.URISchemeHTTPS:
		return p.get(ctx, h.HTTPGet)
	case h.HTTPGet != nil: // the lab's servers have no certificates
		return p.connect(ctx, h.HTTPGet.Host, h.HTTPGet.Port)
	case h.TCPSocket != nil:
		return p.connect(ctx, h.TCPSocket.Host, h.TCPSocket.Port)
	case h.GRPC != nil:
		return p.connect(ctx, "", intstr.FromInt32(h.GRPC.Port))
	}
	return nil
}

func (p *prober) exec(args []string, timeout time.Duration) error {
	switch c := readCommand(args); {
	case c.takes > timeout:
		return fmt.Errorf("command timed out: %q timed out after %s", args, timeout)
	case c.code != 0:
		return fmt.Errorf("command %q: exit status %d", args, c.code)
	}
	return nil
}

// dial connects through the node's network. The address is literal, so Go opens the socket on the
// calling thread.
func (p *prober) dial(ctx context.Context, address string) (conn net.Conn, err error) {
	d := net.Dialer{KeepAlive: -1}
	d.SetMultipathTCP(false)
	connect := func() (err error) {
		conn, err = d.DialContext(ctx, "tcp", address)
		return err
	}
	if p.inside {
		err = connect()
	} else {
		err = p.node.Do(connect)
	}
	return conn, err
}

func (p *prober) connect(ctx context.Context, host string, port intstr.IntOrString) error {
	address, err := p.address(host, port)
	if err != nil {
		return err
	}
	conn, err := p.dial(ctx, address)
	if err != nil {
		return err
	}
	return conn.Close()
}

func (p *prober) get(ctx context.Context, h *corev1.HTTPGetAction) error {
	address, err := p.address(h.Host, h.Port)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/"+strings.TrimPrefix(h.Path, "/"), nil)
	if err != nil {
		return fmt.Errorf("read path %q: %w", h.Path, err)
	}
	req.Header.Set("User-Agent", "kube-probe/sluice")
	req.Header.Set("Accept", "*/*")
	req.Close = true
	for _, header := range h.HTTPHeaders {
		req.Header.Add(header.Name, header.Value)
		if http.CanonicalHeaderKey(header.Name) == "Host" {
			req.Host = header.Value
		}
	}
	conn, err := p.dial(ctx, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline() // probe has set one
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if err := req.Write(conn); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 10<<10)) // only the status counts
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return fmt.Errorf("HTTP probe failed with statuscode: %d", resp.StatusCode)
	}
	return nil
}

func (p *prober) address(host string, port intstr.IntOrString) (string, error) {
	n, err := portNumber(p.ctr, port)
	if err != nil {
		return "", err
	}
	if host == "" {
		host = p.addr.String()
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return "", fmt.Errorf("probe host %q: only addresses can be probed in a lab", host)
	}
	return net.JoinHostPort(host, strconv.Itoa(int(n))), nil
}

// portNumber resolves a port that a probe names.
func portNumber(ctr *corev1.Container, port intstr.IntOrString) (int32, error) {
	if port.Type == intstr.Int {
		return port.IntVal, nil
	}
	for _, p := range ctr.Ports {
		if p.Name == port.StrVal {
			return p.ContainerPort, nil
		}
	}
	if n, err := strconv.ParseUint(port.StrVal, 10, 16); err == nil {
		return int32(n), nil
	}
	return 0, fmt.Errorf("container %s has no port named %q", ctr.Name, port.StrVal)
}
