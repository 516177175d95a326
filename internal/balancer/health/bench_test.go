package health

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/test/world"
)

// A benchmark runs its Checker in a process of its own, in a namespace of its own, so that the
// processor time of the process is that of the checks.
const (
	benchVariable = "SLUICE_BENCH_HEALTH" // set: this process is a benchmark's Checker
	benchTargets  = 10000
	benchInterval = 5 * time.Second
)

// benchOrder is what a benchmark's Checker is to do, and benchReport what came of it.
type (
	benchOrder struct {
		Check  Check
		Checks int // how many to measure
		Port   uint16
	}
	benchReport struct {
		Elapsed, User, System time.Duration
		Checks                int
		Up                    int // targets
	}
)

func TestMain(m *testing.M) {
	if order := os.Getenv(benchVariable); order != "" {
		benchChild(order)
		return
	}
	os.Exit(m.Run())
}

// Checks of ten thousand backends every five seconds. They are behind a router in another
// namespace, where one listener has all their addresses; its kernel's work is part of what is
// measured, since the same processor does it at once.
func BenchmarkTCP(b *testing.B) { benchmark(b, Check{Type: TCP}) }

// The same where no backend answers.
func BenchmarkTCPSilent(b *testing.B) { benchmark(b, Check{Type: TCP, Port: 9}) }

// By HTTP, to a server in Go, whose own work is not part of what is measured.
func BenchmarkHTTP(b *testing.B)  { benchmark(b, Check{Type: HTTP}) }
func BenchmarkHTTPS(b *testing.B) { benchmark(b, Check{Type: HTTPS, Insecure: true}) }

func BenchmarkPing(b *testing.B) { benchmark(b, Check{Type: ICMP}) }

func benchmark(b *testing.B, check Check) {
	client, server := benchNetwork(b)
	var port uint16
	server.In(func() error {
		l, err := net.Listen("tcp4", ":0")
		if err == nil {
			b.Cleanup(func() { _ = l.Close() })
			port = netip.MustParseAddrPort(l.Addr().String()).Port()
			serve(b, l, check.Type)
		}
		return err
	})
	order, err := json.Marshal(benchOrder{check, b.N, port})
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchVariable+"="+string(order))
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	client.In(cmd.Start)
	if err := cmd.Wait(); err != nil {
		b.Fatal(err)
	}
	var r benchReport
	if err := json.Unmarshal([]byte(out.String()), &r); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64((r.User+r.System).Nanoseconds())/1e3/float64(r.Checks), "cpu-µs/check")
	b.ReportMetric(float64(r.User.Nanoseconds())/1e3/float64(r.Checks), "user-µs/check")
	b.ReportMetric(100*(r.User+r.System).Seconds()/r.Elapsed.Seconds(), "%core")
	b.ReportMetric(float64(r.Checks)/r.Elapsed.Seconds(), "checks/s")
	b.ReportMetric(float64(r.Up), "up")
}

// serve has a listener's connections answered, where checks ask for that.
func serve(b *testing.B, l net.Listener, kind string) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	_ = s.Listener.Close()
	s.Listener, s.Config.ErrorLog = l, log.New(io.Discard, "", 0) // that checks end is no error
	switch kind {
	case HTTP:
		s.Start()
	case HTTPS:
		s.StartTLS()
	default:
		return
	}
	b.Cleanup(s.Close)
}

// benchNetwork makes a namespace for the checker and one for all backends, 10.1.0.0/16.
func benchNetwork(b *testing.B) (client, server *world.Host) {
	client, server = world.NewHost(b, "client"), world.NewHost(b, "server")
	client.Join("v", server, "v")
	client.Address("v", "192.0.2.1/24")
	server.Address("v", "192.0.2.2/24")
	server.IP("route add local 10.1.0.0/16 dev lo")
	client.Route("10.1.0.0/16", "192.0.2.2")
	server.Exec("nft", "add table ip t; add chain ip t in { type filter hook input priority 0; }; add rule ip t in tcp dport 9 drop")
	return client, server
}

// benchChild carries out an order.
func benchChild(text string) {
	var order benchOrder
	if err := json.Unmarshal([]byte(text), &order); err != nil {
		panic(err)
	}
	order.Check.Interval = benchInterval
	var mu sync.Mutex
	results := map[Key]Result{}
	known := func() map[Key]Result {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(results)
	}
	c := New(Options{Report: func(all []Result) {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range all {
			results[r.Key] = r
		}
	}})
	changes := map[Key]*Target{}
	for i := range benchTargets {
		addr := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		changes[Key{"farm", strconv.Itoa(i)}] = &Target{&order.Check, addr, order.Port}
	}
	c.Set(changes)
	go c.Run(context.Background())
	for len(known()) < benchTargets {
		time.Sleep(50 * time.Millisecond)
	}
	var r benchReport
	var before, after syscall.Rusage
	first, start := opened(order.Check.Type), time.Now()
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	for opened(order.Check.Type)-first < order.Checks {
		time.Sleep(50 * time.Millisecond)
	}
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	r.Elapsed, r.Checks = time.Since(start), opened(order.Check.Type)-first
	r.User = time.Duration(after.Utime.Nano() - before.Utime.Nano())
	r.System = time.Duration(after.Stime.Nano() - before.Stime.Nano())
	for _, x := range known() {
		if x.Up {
			r.Up++
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		panic(err)
	}
}

// opened returns how many checks the kernel has counted in this namespace.
func opened(kind string) int {
	group, name := "Tcp:", "ActiveOpens"
	if kind == ICMP {
		group, name = "Icmp:", "OutEchos"
	}
	text, err := os.ReadFile("/proc/self/net/snmp")
	if err != nil {
		panic(err)
	}
	var names []string
	for row := range strings.Lines(string(text)) {
		switch f := strings.Fields(row); {
		case f[0] != group:
		case names == nil:
			names = f
		default:
			for i := range f {
				if names[i] == name {
					n, _ := strconv.Atoi(f[i])
					return n
				}
			}
		}
	}
	panic(group + name + " is not in /proc/net/snmp")
}
