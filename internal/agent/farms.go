package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// FarmReport is a farm as this machine serves it.
type FarmReport struct {
	Name      string              `json:"name"`
	Mode      string              `json:"mode"`
	Scheduler string              `json:"scheduler"`
	Addresses []string            `json:"addresses"`
	Backends  []FarmBackendReport `json:"backends"`
}

// FarmBackendReport is a backend of a farm, and what it serves.
type FarmBackendReport struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	// State is "serving", "backup", "draining" or "down".
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	Weight int    `json:"weight"`
	// Chosen counts new connections since the backend was programmed, or packets in modes that
	// track no connections.
	Chosen uint64 `json:"chosen"`
	Active int    `json:"active"` // connections at present
	Bytes  uint64 `json:"bytes"`  // sent in these, both ways

	got driver.Traffic
}

// FarmCounter counts what farms serve; safe for concurrent use.
type FarmCounter interface {
	// Traffic returns what backends have got.
	Traffic(ctx context.Context) (map[driver.Backend]driver.Traffic, error)
}

// errNoFarms is the answer of an agent that is no balancer.
var errNoFarms = errors.New("this agent serves no farms: they are served by sluice balance")

// Farms returns the farms that are wanted, sorted by name, with what they serve; safe for
// concurrent use.
func (a *Agent) Farms(ctx context.Context) ([]FarmReport, error) {
	if a.FarmCounter == nil {
		return nil, errNoFarms
	}
	var farms []*state.Farm
	a.compiling.Lock()
	unreached := map[netip.Addr]string{}
	for _, f := range a.Compiler.State().Farms.Farms {
		farms = append(farms, f)
		for i, device := range f.Devices {
			if device == 0 {
				unreached[f.Backends[i].Addr] = a.Compiler.Farms.Refused(f.Backends[i].Addr)
			}
		}
	}
	a.compiling.Unlock()
	slices.SortFunc(farms, func(x, y *state.Farm) int { return strings.Compare(x.Name, y.Name) })
	traffic, err := a.FarmCounter.Traffic(ctx)
	if err != nil {
		return nil, err
	}
	reports := make([]FarmReport, 0, len(farms))
	for _, f := range farms {
		reports = append(reports, reportFarm(f, unreached, traffic))
	}
	return reports, nil
}

// FarmsStatus counts the farms of a balancer.
type FarmsStatus struct {
	Farms    int `json:"farms"`
	Backends int `json:"backends"` // of all farms
	Serving  int `json:"serving"`  // of these, those that get new connections
}

// farmsStatus returns nil if the agent is no balancer.
func (a *Agent) farmsStatus() *FarmsStatus {
	a.compiling.Lock()
	defer a.compiling.Unlock()
	farms := a.Compiler.State().Farms
	if farms == nil {
		return nil
	}
	s := &FarmsStatus{Farms: len(farms.Farms)}
	for _, f := range farms.Farms {
		s.Backends += len(f.Backends)
		for _, serves := range f.Serving() {
			if serves {
				s.Serving++
			}
		}
	}
	return s
}

func reportFarm(f *state.Farm, unreached map[netip.Addr]string, traffic map[driver.Backend]driver.Traffic) FarmReport {
	r := FarmReport{Name: f.Name, Mode: f.Mode.String(), Scheduler: f.Scheduler.String(), Addresses: []string{}, Backends: []FarmBackendReport{}}
	for _, a := range f.Addresses {
		r.Addresses = append(r.Addresses, placeOf(a))
	}
	serving := f.Serving()
	for i, b := range f.Backends {
		why := b.Why
		if noInterface(f, i) {
			why = cmp.Or(why, unreached[b.Addr])
		}
		got := traffic[driver.Backend{Farm: f.Name, Name: b.Name}]
		r.Backends = append(r.Backends, FarmBackendReport{
			Name: b.Name, Address: backendAddress(b), State: stateOf(f, i, serving[i]), Reason: why, Weight: b.Weight,
			Chosen: got.Chosen, Active: got.Active, Bytes: got.Bytes, got: got,
		})
	}
	return r
}

// noInterface reports whether no interface leads to a backend that needs one.
func noInterface(f *state.Farm, i int) bool { return i < len(f.Devices) && f.Devices[i] == 0 }

// stateOf says what a backend gets.
func stateOf(f *state.Farm, i int, serves bool) string {
	switch {
	case serves:
		return "serving"
	case f.Backends[i].State == model.BackendDraining:
		return "draining"
	case f.Backends[i].State == model.BackendDown, noInterface(f, i):
		return "down"
	}
	return "backup"
}

func backendAddress(b model.FarmBackend) string {
	if b.Port == 0 {
		return b.Addr.String()
	}
	return netip.AddrPortFrom(b.Addr, b.Port).String()
}

// placeOf is "tcp 192.0.2.1:80,443" or "tcp,udp *:53".
func placeOf(a model.FarmAddress) string {
	var protocols, ports []string
	for _, p := range a.Protocols {
		protocols = append(protocols, strings.ToLower(p.String()))
	}
	for _, p := range a.Ports {
		if p.First == p.Last {
			ports = append(ports, fmt.Sprint(p.First))
		} else {
			ports = append(ports, fmt.Sprintf("%d-%d", p.First, p.Last))
		}
	}
	at := "*"
	if a.Addr.Is6() {
		at = "[" + a.Addr.String() + "]"
	} else if a.Addr.IsValid() {
		at = a.Addr.String()
	}
	if ports == nil {
		ports = []string{"*"}
	}
	return strings.Join(protocols, ",") + " " + at + ":" + strings.Join(ports, ",")
}
