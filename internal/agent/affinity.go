package agent

import "sluice.dev/sluice/internal/driver"

var (
	descRemembered    = desc("affinity_clients", "Clients of services with session affinity that the kernel remembers, counted for each frontend, at the agent's last check.", "ip_family")
	descRememberedMax = desc("affinity_clients_max", "Limit of remembered clients for an address family.")
	descForgotten     = desc("affinity_clients_forgotten_total", "Remembered clients that were evicted to make room for others.")
)

// affinityWarning is the fill level of the kernel's map of clients, in percent, from which the
// status reports a problem.
const affinityWarning = 75

// remembered is nil if the driver cannot tell.
func (a *Agent) remembered() *driver.Remembered {
	r := a.Driver.Capabilities().Rememberer
	if r == nil {
		return nil
	}
	return new(r.Remembered())
}

func (c collector) collectAffinity(s samples) {
	r := c.remembered()
	if r == nil {
		return
	}
	for i, n := range []int{r.IPv4, r.IPv6} {
		s.put(descRemembered, float64(n), families[i])
	}
	s.put(descRememberedMax, float64(r.Most))
	s.put(descForgotten, float64(r.Forgotten))
}
