package peer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"syscall"
	"time"

	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/inject"
	"sluice.dev/sluice/internal/bench/testbed"
	"sluice.dev/sluice/internal/netns"
)

// Nftlb is Debian's nftlb in the node's namespace; its farms are set through its HTTP API.
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

// Load implements Dataplane. The time includes nftlb's own work: there is no telling it from the
// kernel's.
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
	client := testbed.HTTP(node)
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
	if _, err := nftlbCall(ctx, client, http.MethodPost, nftlbAll(c)); err != nil {
		return began, err
	}
	return began, nil
}

// nftlb depends on the order of the fields: an object's name comes first.
type (
	nftlbFarm struct {
		Name         string         `json:"name"`
		Family       string         `json:"family"`
		VirtualAddr  string         `json:"virtual-addr"`
		VirtualPorts string         `json:"virtual-ports"`
		Mode         string         `json:"mode"`
		Protocol     string         `json:"protocol"`
		Scheduler    string         `json:"scheduler"`
		State        string         `json:"state"`
		Backends     []nftlbBackend `json:"backends"`
	}
	nftlbBackend struct {
		Name     string `json:"name"`
		IPAddr   string `json:"ip-addr"`
		Port     string `json:"port"`
		Weight   string `json:"weight"`
		Priority string `json:"priority"`
		State    string `json:"state"`
	}
	nftlbFarms struct {
		Farms []nftlbFarm `json:"farms"`
	}
)

func nftlbAll(c cluster.Cluster) nftlbFarms {
	var all nftlbFarms
	for i := range c.Services {
		farm := nftlbFarm{
			Name: fmt.Sprintf("f%d", i), Family: "ipv4",
			VirtualAddr: cluster.ServiceAddr(i).String(), VirtualPorts: fmt.Sprint(cluster.ServicePort),
			Mode: "dnat", Protocol: "tcp", Scheduler: "rr", State: "up",
		}
		for j := range c.Endpoints {
			ep := c.Endpoint(i, j)
			farm.Backends = append(farm.Backends, nftlbBackend{
				Name: fmt.Sprintf("b%d", j), IPAddr: ep.Addr().String(), Port: fmt.Sprint(ep.Port()),
				Weight: "1", Priority: "1", State: "up",
			})
		}
		all.Farms = append(all.Farms, farm)
	}
	return all
}

func nftlbCall(ctx context.Context, client *http.Client, method string, body any) ([]byte, error) {
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
