package drivertest

import (
	"testing"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
)

// Upgrade replaces a driver by one with another ruleset, and then goes back, while clients keep
// connecting. No connection fails, existing ones go on, and clients with affinity keep their
// backends.
func Upgrade(t *testing.T, open, other Open) {
	t.Parallel()
	lent := &topologies{parent: t}
	for _, f := range []family{ipv4, ipv6} {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			(&run{topology: lent.lend(t), family: f, open: open}).upgrade(t, other)
		})
	}
}

func (r *run) upgrade(t *testing.T, other Open) {
	r.start(t, config{})
	r.needs(t, driver.Services|driver.Survives|driver.Affinity)
	clients := many(mostClients)
	sticky := func(on string) []svc {
		return []svc{
			{at: "vip", lb: "lb", ports: []port{httpNode, dnsNode}, on: on, edit: func(s *model.Service) { s.Affinity = time.Hour }},
		}
	}
	sends := []send{
		tcp(clients, "vip:80", by("a")), tcp("outside", "node:30080", by("a").masked()), udp("c", "vip:53", by("a")),
		tcp("b", "vip:80", by("a")).on("pod"), tcp("outside2", "node:30080", by("a").masked()).on("outside"), udp("node", "vip:53", by("a")).on("node"),
	}
	r.step(t, 0, step{services: sticky("a"), sends: sends})
	r.step(t, 1, step{services: sticky("a b x")})
	load := r.load()
	for i, next := range []Open{other, r.open} {
		if err := r.driver.Close(); err != nil {
			t.Fatalf("close the driver: %v", err)
		}
		r.open = next
		r.reopen(t)
		plan, err := r.driver.Adopt(t.Context(), r.cluster.state(), driver.Keep{})
		if err != nil {
			t.Fatalf("plan the upgrade: %v", err)
		}
		if plan.Len() == 0 {
			t.Error("the other driver has nothing to do")
		}
		r.apply(t, plan)
		r.step(t, 2+i, step{services: sticky("a b x"), sends: sends})
		r.adopt(t, true)
	}
	load.finish(t)
}
