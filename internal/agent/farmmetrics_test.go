package agent

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// farmTraffic is a FarmCounter whose readings take long, and count themselves.
type farmTraffic struct {
	took     time.Duration
	readings uint64
	all      map[driver.Backend]driver.Traffic
}

func (f *farmTraffic) Traffic(context.Context) (map[driver.Backend]driver.Traffic, error) {
	time.Sleep(f.took)
	f.readings++
	return f.all, nil
}

// farmAgent is an agent with farms of so many backends.
func farmAgent(t testing.TB, farms, backends int, counter *farmTraffic) *Agent {
	t.Helper()
	objects := store.New()
	counter.all = map[driver.Backend]driver.Traffic{}
	for i := range farms {
		f := &model.Farm{Name: fmt.Sprint("farm", i), Scheduler: model.Weighted, Addresses: []model.FarmAddress{{
			Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), IPv4: true, Protocols: []model.Protocol{model.TCP}, Ports: []model.PortSpan{{First: 80, Last: 80}},
		}}}
		for j := range backends {
			b := model.FarmBackend{Name: fmt.Sprint("backend", j), Addr: netip.AddrFrom4([4]byte{10, 1, byte(j >> 8), byte(j)}), Port: 8080, Weight: 1, Priority: 1}
			f.Backends = append(f.Backends, b)
			counter.all[driver.Backend{Farm: f.Name, Name: b.Name}] = driver.Traffic{TotalChosen: uint64(j), Active: 1, TotalBytes: 1000}
		}
		objects.Apply([]store.Event{{Kind: model.FarmKind, Name: model.Name{Name: f.Name}, Object: f}})
	}
	compiler := compile.New(compile.Config{Farms: true})
	compiler.Update(objects, objects.Take())
	return New(Config{
		Store: objects, Compiler: compiler, Source: &fakeSource{store: objects}, Driver: newFakeDriver(), FarmCounter: counter,
		ChecksFailed: func(string, string) uint64 { return 7 },
	})
}

// Scrapes that come one upon the other do not read anew each time what farms serve.
func TestFarmMetrics(t *testing.T) {
	counter := &farmTraffic{took: 10 * time.Millisecond}
	a := farmAgent(t, 1, 2, counter)
	begun := time.Now()
	for range 10 {
		text := scrape(t, a.metrics.handler(nil), "/metrics")
		for _, line := range []string{
			`sluice_farm_backend_state{backend="backend1",farm="farm0",state="serving"} 1`,
			`sluice_farm_backend_connections_total{backend="backend1",farm="farm0"} 1`,
			`sluice_farm_backend_active_connections{backend="backend1",farm="farm0"} 1`,
			`sluice_farm_backend_bytes_total{backend="backend1",farm="farm0"} 1000`,
			`sluice_farm_backend_checks_failed_total{backend="backend1",farm="farm0"} 7`,
			`sluice_farms 1`,
		} {
			if !strings.Contains(text, "\n"+line+"\n") {
				t.Fatalf("no line %s", line)
			}
		}
	}
	if most := 1 + uint64(time.Since(begun)/(farmPause*counter.took)); counter.readings > most {
		t.Errorf("%d readings, want %d at most", counter.readings, most)
	}
}

// BenchmarkFarmMetrics is a scrape of a balancer with 10,000 backends, except for the kernel's
// part.
func BenchmarkFarmMetrics(b *testing.B) {
	h := farmAgent(b, 100, 100, &farmTraffic{}).metrics.handler(nil)
	for b.Loop() {
		scrape(b, h, "/metrics")
	}
}
