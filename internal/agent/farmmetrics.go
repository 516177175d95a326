package agent

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
func (c collector) collectFarms(ch chan<- prometheus.Metric, gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	f := c.farmsStatus()
	if f == nil {
		return
	}
	gauge(descFarms, float64(f.Farms))
	gauge(descFarmBacks, float64(f.Serving), "true")
	gauge(descFarmBacks, float64(f.Backends-f.Serving), "false")
	for _, f := range c.readFarms() {
		for _, b := range f.Backends {
			count := func(d *prometheus.Desc, n uint64) {
				ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), f.Name, b.Name)
			}
			gauge(descBackendState, 1, f.Name, b.Name, b.State)
			if b.got.Untracked {
				count(descBackendPackets, b.got.TotalChosen)
			} else {
				count(descBackendConns, b.got.TotalChosen)
				gauge(descBackendActive, float64(b.Active), f.Name, b.Name)
			}
			count(descBackendBytes, b.got.TotalBytes)
			count(descBackendFailed, c.ChecksFailed(f.Name, b.Name))
		}
	}
}
