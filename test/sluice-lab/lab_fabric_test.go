package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/test/lab"
)

// upWith brings up a lab of the example shop with flags, and takes it down at the end of the test.
func upWith(t *testing.T, name string, flags ...string) *lab.Lab {
	t.Helper()
	needRoot(t)
	name = named(name)
	t.Cleanup(func() {
		if err := lab.Down(name); err != nil {
			t.Error(err)
		}
	})
	var out bytes.Buffer
	args := append([]string{"lab", "up", "--name", name}, flags...)
	if code := execute(t.Context(), args, &out, &out); code != cli.ExitOK {
		t.Fatalf("%v: exit status %d\n%s", args, code, out.String())
	}
	l, err := openLab(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// probing is held by who sends requests to all services: those of several labs at the same time
// would make each other's answers late.
var probing sync.Mutex

// checkProbe sends requests to all services from everywhere: all end as manifests and policies say.
// Where they do not, it tells what the nodes and the machine have dropped.
func checkProbe(t *testing.T, l *lab.Lab) {
	t.Helper()
	probing.Lock()
	defer probing.Unlock()
	var out bytes.Buffer
	longest := stalls(t)
	code := execute(t.Context(), []string{"lab", "probe", "--requests", "1", "--name", l.Name}, &out, &out)
	if code == cli.ExitOK && strings.Contains(out.String(), "all as they should be") {
		return
	}
	t.Errorf("probe: exit status %d, this process stood still for up to %v\n%s", code, longest(), out.String())
	for _, n := range l.Cluster.Nodes {
		for line := range strings.Lines(string(execOn(t, l, n.Name, "/usr/bin/curl", "-s", "http://127.0.0.1:10249/metrics"))) {
			if strings.Contains(line, "drop") && !strings.HasPrefix(line, "#") && !strings.HasSuffix(line, " 0\n") {
				t.Logf("%s: %s", n.Name, line)
			}
		}
		t.Logf("%s:\n%s", n.Name, execOn(t, l, n.Name, "/bin/cat", "/proc/loadavg", "/proc/net/softnet_stat", "/proc/net/dev"))
	}
}

// stalls watches how long this process does not run when it should, until the returned function
// tells.
func stalls(t *testing.T) (longest func() time.Duration) {
	done, most := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		const step = 10 * time.Millisecond
		var longest time.Duration
		for {
			begin := time.Now()
			select {
			case <-done:
				most <- longest
				return
			case <-time.After(step):
				longest = max(longest, time.Since(begin)-step)
			}
		}
	}()
	stop := sync.OnceValue(func() time.Duration { close(done); return <-most })
	t.Cleanup(func() { stop() })
	return stop
}

// Services and policies hold in each mode of the pod network. IPIP, which few kernels have built
// in, is shown in the guest.
func TestLabFabrics(t *testing.T) {
	for mode, way := range map[string]string{
		"native":       "10.244.2.0/24 via 10.10.0.12 dev eth0",
		"bgp":          "10.244.2.0/24 via 10.10.0.3 dev eth0",
		"vxlan":        "10.244.2.0/24 via 10.10.0.12 dev sluice.vxlan",
		"cross-subnet": "10.244.2.0/24 via 10.10.1.12 dev sluice.vxlan",
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			l := upWith(t, "testfab"+mode[:3], "--fabric", mode)
			if notes := l.Status(t.Context()).Warnings; len(notes) > 0 {
				t.Errorf("the lab is up with notes: %q", notes)
			}
			if routes := string(execOn(t, l, "node1", "/sbin/ip", "route")); !strings.Contains(routes, way) {
				t.Errorf("no route %s:\n%s", way, routes)
			}
			var report agent.FabricReport
			if err := json.Unmarshal(execOn(t, l, "node1", "sluice", "fabric", "-o", "json"), &report); err != nil || len(report.Blocks) != 6 || len(report.Issues) > 0 || report.Error != "" {
				t.Errorf("sluice fabric says %+v, %v", report, err)
			}
			checkProbe(t, l)
		})
	}
}

// checkBGP checks that the agents have learned of their BGP peer, and from it.
func checkBGP(t *testing.T, l *lab.Lab) {
	t.Helper()
	var report agent.BGPReport
	if err := json.Unmarshal(execOn(t, l, "node1", "sluice", "bgp", "-o", "json"), &report); err != nil || len(report.Peers) != 2 || len(report.Learned) != 4 || len(report.Issues) > 0 {
		t.Errorf("sluice bgp says %+v, %v", report, err)
	}
}

// Any CNI plugin can attach the lab's pods.
func TestLabCNI(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ptp.conflist")
	if err := os.WriteFile(file, []byte(`{"cniVersion": "1.0.0", "name": "testcni", "plugins": [
		{"type": "ptp", "capabilities": {"ips": true, "ipRanges": true}, "ipam": {"type": "host-local", "dataDir": "`+t.TempDir()+`", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
		{"type": "tuning", "sysctl": {"net.ipv4.tcp_keepalive_time": "77"}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	l := upWith(t, "testcni", "--cni", file)
	if got := string(execOn(t, l, "shop/cart-1", "/bin/cat", "/proc/sys/net/ipv4/tcp_keepalive_time")); strings.TrimSpace(got) != "77" {
		t.Errorf("what the second plugin sets is %q", got)
	}
	checkProbe(t, l)
}

func TestLabFabricUsage(t *testing.T) {
	needRoot(t)
	for _, c := range []struct{ args, say string }{
		{"--fabric magic", "choose one of native, bgp, vxlan, ipip, cross-subnet"},
		{"--fabric vxlan --no-agent", "leave out --no-agent"},
		{"--cni /nonexistent", "/nonexistent"},
	} {
		var out bytes.Buffer
		if code := execute(t.Context(), append([]string{"lab", "up", "--name", named("testfabuse")}, strings.Fields(c.args)...), &out, &out); code == cli.ExitOK || !strings.Contains(out.String(), c.say) {
			t.Errorf("%s: exit status %d, and not %q:\n%s", c.args, code, c.say, out.String())
		}
	}
}
