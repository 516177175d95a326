package agent

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

type noFlows struct{}

func (noFlows) Traffic(context.Context) (map[driver.Backend]driver.Traffic, error) { return nil, nil }

// A backend of the first choice to which nothing leads is no backup: it is down, and why is said.
// What a check found is said of it as of others.
func TestFarmsSaysWhy(t *testing.T) {
	objects := store.New()
	farm := &model.Farm{Name: "web", Mode: model.DSR, Backends: []model.FarmBackend{
		{Name: "far", Addr: netip.MustParseAddr("198.51.100.9"), Priority: 1},
		{Name: "six", Addr: netip.MustParseAddr("2001:db8::9"), Priority: 1},
		{Name: "mute", Addr: netip.MustParseAddr("192.0.2.8"), Priority: 1, State: model.BackendDown, Why: "no answer within 1s"},
		{Name: "near", Addr: netip.MustParseAddr("192.0.2.9"), Priority: 1},
		{Name: "spare", Addr: netip.MustParseAddr("192.0.2.10"), Priority: 3},
	}}
	objects.Apply([]store.Event{{Kind: model.FarmKind, Name: model.Name{Name: farm.Name}, Object: farm}})
	compiler := compile.New(compile.Config{Farms: true, IPIP: func() error { return errors.New("no such device") }})
	compiler.SetLinks(model.Links{Routes: []model.LinkRoute{{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Link: 2}}})
	compiler.Update(objects, objects.Take())
	a := New(Config{Store: objects, Compiler: compiler, FarmCounter: noFlows{}})
	farms, err := a.Farms(t.Context())
	if err != nil || len(farms) != 1 {
		t.Fatal(farms, err)
	}
	want := map[string][2]string{
		"far":   {"down", "is not on a network of this machine, and dsr cannot send to others: modprobe sit (no such device)"},
		"six":   {"down", "is not on a network of this machine, which dsr needs for IPv6"},
		"mute":  {"down", "no answer within 1s"},
		"near":  {"serving", ""},
		"spare": {"backup", ""},
	}
	for _, b := range farms[0].Backends {
		if got := [2]string{b.State, b.Reason}; got != want[b.Name] {
			t.Errorf("%s: %q, want %q", b.Name, got, want[b.Name])
		}
	}
}
