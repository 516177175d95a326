package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"sluice.dev/sluice/internal/driver"
)

var (
	descRemembered    = desc("affinity_clients", "Clients of services with session affinity that the kernel remembered when the agent last looked, of each frontend apart.", "ip_family")
	descRememberedMax = desc("affinity_clients_max", "The most such clients that the kernel remembers of an address family.")
	descForgotten     = desc("affinity_clients_forgotten_total", "Such clients that were forgotten to make room for others.")
)

// affinityWarning is how full the kernel's map of clients is, in percent, when that is said to be a
// problem.
const affinityWarning = 75

// remembered is nil where the driver cannot tell.
func (a *Agent) remembered() *driver.Remembered {
	r := a.Driver.Capabilities().Rememberer
	if r == nil {
		return nil
	}
	return new(r.Remembered())
}

func (c collector) collectAffinity(ch chan<- prometheus.Metric) {
	r := c.remembered()
	if r == nil {
		return
	}
	for i, n := range []int{r.IPv4, r.IPv6} {
		ch <- prometheus.MustNewConstMetric(descRemembered, prometheus.GaugeValue, float64(n), families[i])
	}
	ch <- prometheus.MustNewConstMetric(descRememberedMax, prometheus.GaugeValue, float64(r.Most))
	ch <- prometheus.MustNewConstMetric(descForgotten, prometheus.CounterValue, float64(r.Forgotten))
}
