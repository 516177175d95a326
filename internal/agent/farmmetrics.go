package agent

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

var (
	descFarms     = desc("farms", "Farms of the balancer.")
	descFarmBacks = desc("farm_backends", "Backends over all farms of the balancer, by whether they get new connections.", "serving")

	descBackendState   = desc("farm_backend_state", "1, with the state of a farm's backend: serving, backup, draining or down.", "farm", "backend", "state")
	descBackendConns   = desc("farm_backend_connections_total", "Connections for which a farm's backend was chosen; those of clients that stay on their backend (persistence) are not counted.", "farm", "backend")
	descBackendPackets = desc("farm_backend_packets_total", "Packets from clients to a farm's backend, in the modes that track no connections: dsr and stlsdnat.", "farm", "backend")
	descBackendBytes   = desc("farm_backend_bytes_total", "Bytes between clients and a farm's backend, as far as they pass this machine. Where connections are tracked, what one sends after the last scrape before its end is not counted.", "farm", "backend")
	descBackendActive  = desc("farm_backend_active_connections", "Connections that a farm's backend has, those that are about to end included.", "farm", "backend")
	descBackendFailed  = desc("farm_backend_checks_failed_total", "Health checks of a farm's backend that failed.", "farm", "backend")
)

// farmReading is what farms served when that was last read for a scrape.
type farmReading struct {
	sync.Mutex
	farms []FarmReport
	until time.Time // it does until then
}

// farmPause is how many times as long as a reading of what farms serve takes there is no other: all
// entries of connection tracking are read, which may be a million. So scrapes, however often they
// come, take a twentieth of a core at the most.
const farmPause = 20

// readFarms returns what farms serve; nil if that cannot be read.
func (a *Agent) readFarms() []FarmReport {
	r := &a.farms
	r.Lock()
	defer r.Unlock()
	begun := time.Now()
	if begun.Before(r.until) {
		return r.farms
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeLimit)
	defer cancel()
	farms, err := a.Farms(ctx)
	if err != nil {
		return nil
	}
	now := time.Now()
	r.farms, r.until = farms, now.Add(farmPause*now.Sub(begun))
	return farms
}

// collectFarms makes the metrics of a balancer.
func (c collector) collectFarms(s samples) {
	f := c.farmsStatus()
	if f == nil {
		return
	}
	s.put(descFarms, float64(f.Farms))
	s.put(descFarmBacks, float64(f.Serving), "true")
	s.put(descFarmBacks, float64(f.Backends-f.Serving), "false")
	type served struct {
		farm string
		*FarmBackendReport
	}
	var all []served
	for _, f := range c.readFarms() {
		for i := range f.Backends {
			all = append(all, served{f.Name, &f.Backends[i]})
		}
	}
	// In this order the registry would put them itself, which takes longer.
	slices.SortFunc(all, func(x, y served) int { return cmp.Or(strings.Compare(x.Name, y.Name), strings.Compare(x.farm, y.farm)) })
	for _, b := range all {
		labels := []*dto.LabelPair{{Name: &backendLabel, Value: &b.Name}, {Name: &farmLabel, Value: &b.farm}}
		put := func(c collected, v float64) { s <- farmMetric{c, labels, v} }
		s <- farmMetric{descBackendState, append(labels[:2:2], &dto.LabelPair{Name: &stateLabel, Value: &b.State}), 1}
		if b.got.Untracked {
			put(descBackendPackets, float64(b.got.TotalChosen))
		} else {
			put(descBackendConns, float64(b.got.TotalChosen))
			put(descBackendActive, float64(b.Active))
		}
		put(descBackendBytes, float64(b.got.TotalBytes))
		put(descBackendFailed, float64(c.ChecksFailed(b.farm, b.Name)))
	}
}

// farmMetric is a metric of a backend.
type farmMetric struct {
	of     collected
	labels []*dto.LabelPair // sorted
	value  float64
}

var backendLabel, farmLabel, stateLabel = "backend", "farm", "state"

// Desc implements prometheus.Metric.
func (m farmMetric) Desc() *prometheus.Desc { return m.of.Desc }

// Write implements prometheus.Metric.
func (m farmMetric) Write(to *dto.Metric) error {
	to.Label = m.labels
	if m.of.kind == prometheus.GaugeValue {
		to.Gauge = &dto.Gauge{Value: &m.value}
	} else {
		to.Counter = &dto.Counter{Value: &m.value}
	}
	return nil
}
