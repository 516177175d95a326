package peer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"syscall"
	"time"

	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/inject"
	"sluice.dev/sluice/internal/netns"
)

// Nftlb is Debian's nftlb, run in the node's namespace and told of its farms
// through its HTTP API.
type Nftlb struct{}

// Name implements Dataplane.
func (Nftlb) Name() string { return "nftlb" }

// Limit implements Dataplane.
func (Nftlb) Limit() (int, string) {
	return 250, "it holds 4,095 backends at most, and its loading time grows with the square (39 s for 1,000 farms)"
}

// NodePorts implements Dataplane.
func (Nftlb) NodePorts() bool { return false }

// Target implements Dataplane.
func (Nftlb) Target(_ cluster.Cluster, first, count int) inject.Target {
	return services(first, count)
}

const (
	nftlbKey  = "bench"
	nftlbAddr = "127.0.0.1:5555"
)

// Load implements Dataplane. The time includes nftlb's own work: there is no
// telling it from the kernel's.
func (Nftlb) Load(ctx context.Context, node *netns.NS, c cluster.Cluster) (*Loaded, error) {
	if err := need("nftlb", "nftlb"); err != nil {
		return nil, err
	}
	cmd := exec.Command("nftlb", "-k", nftlbKey, "-H", "127.0.0.1", "-P", "5555")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := node.Start(cmd); err != nil {
		return nil, fmt.Errorf("start nftlb: %w", err)
	}
	stop := func() error {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait() // killed: the exit status says only that
		return nil
	}
	began, err := nftlbLoad(ctx, node, c)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("load nftlb: %w", err), stop())
	}
	return &Loaded{Took: time.Since(began), Note: "farms posted, all in one request", Close: stop}, nil
}

// nftlbLoad posts the farms and returns when the daemon first answered.
func nftlbLoad(ctx context.Context, node *netns.NS, c cluster.Cluster) (time.Time, error) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			err = node.Do(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
				return err
			})
			return conn, err
		},
	}}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		_, err := nftlbCall(ctx, client, http.MethodGet, nil)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			return time.Time{}, fmt.Errorf("wait for its API: %w", err)
		}
	}
	began := time.Now()
	if _, err := nftlbCall(ctx, client, http.MethodPost, nftlbFarms(c)); err != nil {
		return began, err
	}
	return began, nil
}

type nftlbObject map[string]any

func nftlbFarms(c cluster.Cluster) nftlbObject {
	var farms []nftlbObject
	for i := range c.Services {
		var backends []nftlbObject
		for j := range c.Endpoints {
			ep := c.Endpoint(i, j)
			backends = append(backends, nftlbObject{
				"name": fmt.Sprintf("b%d", j), "ip-addr": ep.Addr().String(), "port": fmt.Sprint(ep.Port()),
				"weight": "1", "priority": "1", "state": "up",
			})
		}
		farms = append(farms, nftlbObject{
			"name": fmt.Sprintf("f%d", i), "family": "ipv4", "virtual-addr": cluster.ServiceAddr(i).String(),
			"virtual-ports": fmt.Sprint(cluster.ServicePort), "mode": "dnat", "protocol": "tcp",
			"scheduler": "rr", "state": "up", "backends": backends,
		})
	}
	return nftlbObject{"farms": farms}
}

func nftlbCall(ctx context.Context, client *http.Client, method string, body nftlbObject) ([]byte, error) {
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+nftlbAddr+"/farms", content)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Key", nftlbKey)
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %.200s", resp.Status, answer)
	}
	return answer, err
}
