package peer

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/testbed"
	"sluice.dev/sluice/test/netns"
)

// FarmMode is how a farm's packets get to its backends, in nftlb's words.
type FarmMode string

// The modes. The last two choose a backend by client address and port, as they know no connections.
const (
	DNAT      FarmMode = "dnat"
	SNAT      FarmMode = "snat"
	DSR       FarmMode = "dsr"
	Stateless FarmMode = "stlsdnat"
)

// nftlb depends on the order of the fields: an object's name comes first, its lists last.
type (
	// Farm is a farm in nftlb's JSON.
	Farm struct {
		Name         string            `json:"name"`
		Family       string            `json:"family,omitempty"`
		VirtualAddr  string            `json:"virtual-addr,omitempty"`
		VirtualPorts string            `json:"virtual-ports,omitempty"`
		Mode         FarmMode          `json:"mode,omitempty"`
		Protocol     string            `json:"protocol,omitempty"`
		Scheduler    string            `json:"scheduler,omitempty"`
		SchedParam   string            `json:"sched-param,omitempty"`
		State        string            `json:"state,omitempty"`
		Verdict      string            `json:"verdict,omitempty"`
		Check        map[string]string `json:"health-check,omitempty"` // not nftlb's
		Backends     []FarmBackend     `json:"backends,omitempty"`
		Policies     []FarmPolicyName  `json:"policies,omitempty"`
	}
	// FarmBackend is a backend of a Farm.
	FarmBackend struct {
		Name   string `json:"name"`
		IPAddr string `json:"ip-addr,omitempty"`
		Port   string `json:"port,omitempty"`
		State  string `json:"state,omitempty"`
	}
	// FarmPolicyName names a policy that a farm has.
	FarmPolicyName struct {
		Name string `json:"name"`
	}
	// FarmPolicy is a list of addresses.
	FarmPolicy struct {
		Name     string            `json:"name"`
		Type     string            `json:"type"`
		Feed     map[string]string `json:"feed,omitempty"` // not nftlb's
		Elements []FarmElement     `json:"elements,omitempty"`
	}
	// FarmElement is an address or network of a FarmPolicy.
	FarmElement struct {
		Data string `json:"data"`
	}
	// Farms is a document of nftlb.
	Farms struct {
		Policies []FarmPolicy `json:"policies,omitempty"`
		Farms    []Farm       `json:"farms,omitempty"`
	}
)

// FarmName is the name of the farm of service i.
func FarmName(i int) string { return fmt.Sprintf("f%d", i) }

// BackendName is the name of a farm's backend j.
func BackendName(j int) string { return fmt.Sprintf("b%d", j) }

// FarmsOf returns a cluster's services as farms, of TCP unless a protocol is given.
func FarmsOf(c cluster.Cluster, mode FarmMode, protocol string) Farms {
	all := Farms{Farms: make([]Farm, 0, c.Services)}
	scheduler, key := "rr", ""
	if mode == DSR || mode == Stateless {
		scheduler, key = "hash", "srcip srcport"
	}
	for i := range c.Services {
		farm := Farm{
			Name: FarmName(i), Family: "ipv4",
			VirtualAddr: cluster.ServiceAddr(i).String(), VirtualPorts: fmt.Sprint(cluster.ServicePort),
			Mode: cmp.Or(mode, DNAT), Protocol: cmp.Or(protocol, "tcp"), Scheduler: scheduler, SchedParam: key, State: "up",
		}
		for j := range c.Endpoints {
			ep := c.Endpoint(i, j)
			b := FarmBackend{Name: BackendName(j), IPAddr: ep.Addr().String(), Port: fmt.Sprint(ep.Port()), State: "up"}
			if mode == DSR {
				b.Port = "" // ports stay
			}
			farm.Backends = append(farm.Backends, b)
		}
		all.Farms = append(all.Farms, farm)
	}
	return all
}

// FarmServer is a running program with nftlb's API. Close it.
type FarmServer struct {
	cmd    *exec.Cmd
	client *http.Client
	log    bytes.Buffer
	dir    string
}

const (
	farmsKey  = "bench"
	farmsAddr = "127.0.0.1:5555"
)

// StartNftlb starts nftlb with more flags, such as -c.
func StartNftlb(ctx context.Context, node *netns.NS, flags ...string) (*FarmServer, error) {
	if err := need("nftlb", "nftlb"); err != nil {
		return nil, err
	}
	return startFarms(ctx, node, "", "nftlb", append([]string{"-k", farmsKey, "-H", "127.0.0.1", "-P", "5555"}, flags...)...)
}

// StartBalance starts 'sluice balance' with more flags, such as --config.
func StartBalance(ctx context.Context, node *netns.NS, program string, flags ...string) (*FarmServer, error) {
	dir, err := os.MkdirTemp("", "sluice-bench-balance-*")
	if err != nil {
		return nil, fmt.Errorf("make folder for sluice balance: %w", err)
	}
	flags = append([]string{"balance", "--key", farmsKey, "--api", farmsAddr, "--socket", filepath.Join(dir, "agent.sock"), "--log-level", "warn"}, flags...)
	return startFarms(ctx, node, dir, program, flags...)
}

// startFarms starts a program and waits until its API answers.
func startFarms(ctx context.Context, node *netns.NS, dir, program string, args ...string) (*FarmServer, error) {
	s := &FarmServer{cmd: exec.Command(program, args...), client: testbed.HTTP(node), dir: dir}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is ours to handle
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	if err := node.Start(s.cmd); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", program, err), os.RemoveAll(dir))
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(2 * time.Millisecond) {
		_, err := s.Call(ctx, http.MethodGet, "/farms", nil)
		if err == nil {
			return s, nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) || syscall.Kill(s.Pid(), 0) != nil {
			return nil, errors.Join(fmt.Errorf("wait for the API of %s: %w", program, err), s.Close(), errors.New(s.log.String()))
		}
	}
}

// readyURL answers 200 once 'sluice balance' has programmed the farms that it started with.
const readyURL = "http://127.0.0.1:10256/readyz"

// Ready waits until 'sluice balance' has programmed the farms that it started with.
func (s *FarmServer) Ready(ctx context.Context) error {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, readyURL, nil)
		if err != nil {
			return err
		}
		resp, err := s.client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(resp.Status)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait until sluice balance is ready: %w: %s", err, &s.log)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Pid is its process ID.
func (s *FarmServer) Pid() int { return s.cmd.Process.Pid }

// Close ends the program at once, as a crash would. What it programmed stays.
func (s *FarmServer) Close() error {
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	_ = s.cmd.Wait() // killed: the exit status says only that
	return os.RemoveAll(s.dir)
}

// Call makes a request, with a body in JSON unless it is nil, and returns the answer. An answer
// other than success is an error.
func (s *FarmServer) Call(ctx context.Context, method, path string, body any) ([]byte, error) {
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+farmsAddr+path, content)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Key", farmsKey)
	resp, err := s.client.Do(req)
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
