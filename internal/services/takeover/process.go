package takeover

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/internal/preflight"
)

// HealthPort is where kube-proxy serves its health, and the agent in its place.
const HealthPort = 10256

var healthAddress = fmt.Sprintf("127.0.0.1:%d", HealthPort)

// process is one that runs in this network namespace.
type process struct {
	pid  int    // 0: in another pid namespace
	name string // of its program
	unit string // systemd's unit, if one runs it
	pod  bool   // the kubelet runs it
}

func (p process) String() string {
	if p.pid == 0 {
		return fmt.Sprintf("a program in another pid namespace, which serves kube-proxy's health port %d,", HealthPort)
	}
	return fmt.Sprintf("%s (process %d)", p.name, p.pid)
}

// proxies returns the processes that are kube-proxy in the calling thread's network namespace: by
// their program's name, or because they serve kube-proxy's health port (K3s and others have
// kube-proxy within a program of theirs). The agent, by its process id, is not among them; 0:
// unknown. Of other pid namespaces, as within a pod, only that the health port is served can be
// seen.
func proxies(agent int) ([]process, error) {
	sockets, err := listeners(HealthPort)
	if err != nil {
		return nil, err
	}
	dirs, err := preflight.Processes()
	if err != nil {
		return nil, err
	}
	var found []process
	unseen := maps.Clone(sockets)
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		held := holds(dir, sockets)
		for _, s := range held {
			delete(unseen, s)
		}
		name, isProxy := program(dir)
		if pid == agent || pid == os.Getpid() || name == "" || name == "sluice" || !isProxy && len(held) == 0 {
			continue
		}
		p := process{pid: pid, name: name}
		p.unit, p.pod = supervisor(dir)
		found = append(found, p)
	}
	if len(found) == 0 && len(unseen) > 0 && !agentServes() {
		found = append(found, process{pod: true})
	}
	return found, nil
}

// Running reports whether kube-proxy runs in the calling thread's network namespace, beside the
// agent of a process id.
func Running(agent int) (bool, error) {
	found, err := proxies(agent)
	return len(found) > 0, err
}

// proxies returns the processes that are kube-proxy.
func (o *Options) proxies() ([]process, error) {
	agent, _ := agentAt(o.Socket)
	return proxies(agent)
}

// agentServes reports whether an agent serves kube-proxy's health port: it has a page that
// kube-proxy lacks.
func agentServes() bool {
	resp, err := preflight.Get(context.Background(), 2*time.Second, healthAddress, "/readyz")
	return err == nil && (resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusServiceUnavailable)
}

// program returns the name of a process's program, and whether that is kube-proxy. A zombie has
// none.
func program(dir string) (name string, proxy bool) {
	b, err := os.ReadFile(dir + "/cmdline")
	if err != nil || len(b) == 0 {
		return "", false
	}
	args := strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
	name = filepath.Base(args[0])
	return name, name == "kube-proxy" || name == "hyperkube" && slices.Contains(args[1:], "kube-proxy")
}

// holds returns which of the sockets a process has open.
func holds(dir string, sockets map[string]bool) []string {
	if len(sockets) == 0 {
		return nil
	}
	fds, err := os.ReadDir(dir + "/fd")
	if err != nil {
		return nil
	}
	var held []string
	for _, fd := range fds {
		if to, err := os.Readlink(dir + "/fd/" + fd.Name()); err == nil && sockets[to] {
			held = append(held, to)
		}
	}
	return held
}

// listeners returns the sockets that listen on a TCP port, as /proc/PID/fd shows them.
func listeners(port uint16) (map[string]bool, error) {
	sockets := map[string]bool{}
	for _, name := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile("/proc/thread-self/net/" + name)
		if errors.Is(err, os.ErrNotExist) {
			continue // no IPv6 in this kernel
		}
		if err != nil {
			return nil, fmt.Errorf("list sockets: %w", err)
		}
		suffix := fmt.Sprintf(":%04X", port)
		for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
			const local, status, inode, listen = 1, 3, 9, "0A"
			f := strings.Fields(lines.Text())
			if len(f) > inode && strings.HasSuffix(f[local], suffix) && f[status] == listen {
				sockets["socket:["+f[inode]+"]"] = true
			}
		}
	}
	return sockets, nil
}

// supervisor reads from a process's control group who runs it.
func supervisor(dir string) (unit string, pod bool) {
	b, err := os.ReadFile(dir + "/cgroup")
	if err != nil {
		return "", false
	}
	if bytes.Contains(b, []byte("kubepods")) {
		return "", true
	}
	for line := range strings.Lines(string(b)) {
		_, path, _ := strings.Cut(strings.TrimSpace(line), ":/")
		if base := filepath.Base(path); strings.HasSuffix(base, ".service") {
			return base, false
		}
	}
	return "", false
}

// proxyLabel is the label of a node whose value keeps a program off it.
const proxyLabel = "sluice.dev/proxy"

// stop says how to stop a process for good that is kube-proxy or the agent, "sluice".
func (p process) stop(what, node string) string {
	switch {
	case p.pod || p.pid == 0:
		return offNode(what, node, map[string]string{"kube-proxy": "sluice", "sluice": "kube-proxy"}[what])
	case p.name != what:
		return fmt.Sprintf("kube-proxy seems to be part of %s: have it run without (K3s and RKE2: --disable-kube-proxy), and restart it", p.name)
	case p.unit != "":
		return "systemctl disable --now " + p.unit
	}
	return fmt.Sprintf("kill %d, and see that nothing starts it again", p.pid)
}

// offNode says how to have a DaemonSet leave one node: the label says which program the node is
// given to, and the DaemonSet, told once, shuns nodes that are given to the other.
func offNode(daemonSet, node, to string) string {
	return fmt.Sprintf(`kubectl label node %s %s=%s --overwrite
kubectl -n kube-system patch daemonset %s -p '{"spec":{"template":{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"%s","operator":"NotIn","values":["%s"]}]}]}}}}}}}'
(the second once for the cluster)`, node, proxyLabel, to, daemonSet, proxyLabel, to)
}
