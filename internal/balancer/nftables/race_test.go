package nftables_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

var raceCommits = flag.Int("race-commits", 60, "so many changes does TestVerdictsWhileAllChanges make")

// Packets to farms of all modes and kinds of places go to a backend, or nowhere, as they should,
// each of them as the first one of its connection, while the farms change as fast as they can.
//
//	go test ./internal/balancer/nftables -run TestVerdictsWhileAllChanges -race-commits 100000 -timeout 2h -v
func TestVerdictsWhileAllChanges(t *testing.T) {
	t.Parallel()
	w := newSite(t, 3)
	const own, bad, servers = "10.1.0.1", "10.0.0.3", "10.1.0.11-10.1.0.13"
	many := model.PortSpan{First: 7100, Last: 7199}
	farms := []struct {
		mode   model.FarmMode
		port   uint16
		ports  model.PortSpan
		change func(f *model.Farm, version int)
	}{
		{model.DNAT, 7001, port(7001), nil},
		{model.SNAT, 7002, port(7002), nil},
		{model.StatelessDNAT, 7003, port(7003), nil},
		{model.DNAT, 7004, port(7004), func(f *model.Farm, v int) { f.Mark = uint32(v + 1) }},
		{model.DNAT, 7005, port(7005), func(f *model.Farm, v int) { f.Lists = []string{"bad", "worse"}[:1+v%2] }},
		{model.DNAT, 7006, port(7006), func(f *model.Farm, v int) {
			f.Persist, f.PersistFor, f.Backends = model.SrcIP, time.Duration(1+v)*time.Hour, backends(3, true, 7006)
		}},
		{model.DNAT, 7150, many, func(f *model.Farm, v int) { f.Lists = []string{"bad", "worse"}[:1+v%2] }},
		{model.SNAT, 7250, model.PortSpan{First: 7200, Last: 7299}, nil},
		{model.StatelessDNAT, 7350, model.PortSpan{First: 7300, Last: 7399}, nil},
	}
	make := func(i, version int) *model.Farm {
		of := farms[i]
		f := &model.Farm{Name: fmt.Sprint("farm", i), Mode: of.mode, Addresses: []model.FarmAddress{at(virtual4, of.ports)},
			Scheduler: []model.FarmScheduler{model.RoundRobin, model.Weighted, model.Hash, model.Maglev}[version%4], HashBy: model.SrcIP,
			Backends: backends(1+version%3, true, of.port)}
		if of.ports.First != of.ports.Last {
			for b := range f.Backends {
				f.Backends[b].Port = 0
			}
		}
		if of.change != nil {
			of.change(f, version)
		}
		return f
	}
	var flows []*world.Flow
	var all []*model.Farm
	for i, of := range farms {
		f := &world.Flow{Name: fmt.Sprint(of.mode, "-", of.port), Host: w.client, From: "10.0.0.2", To: hostPort(virtual4, fmt.Sprint(of.port)), Gets: servers,
			Untracked: of.mode == model.StatelessDNAT}
		if of.mode == model.SNAT {
			f.As = own
		}
		flows, all = append(flows, f), append(all, make(i, 0))
		if all[i].Lists != nil {
			flows = append(flows, &world.Flow{Name: fmt.Sprint("listed-", of.port), Host: w.client, From: bad, To: f.To, Early: true})
		}
	}
	w.set(all...)
	w.lists(list("bad", false, bad), list("worse", false, "192.0.2.1"))
	packets := w.balancer.Flood(flows, func() {
		for n := range *raceCommits {
			i := rand.N(len(farms))
			all[i] = make(i, rand.N(12))
			delta := state.Delta{Farms: state.FarmsDelta{Farms: map[string]*state.Farm{all[i].Name: w.farms(all[i]).Farms.Farms[all[i].Name]}}}
			p, err := w.driver.Update(t.Context(), delta)
			if err != nil || p.Apply(t.Context()) != nil {
				t.Errorf("change %d: %v", n, err)
				return
			}
			w.state.Apply(delta)
		}
	})
	t.Logf("%d packets, %d changes; the kernel is one that may miss: %t", packets, *raceCommits, nft.MayMiss())
}
