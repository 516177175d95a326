package drivertest

import (
	"context"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/state"
)

// Nothing returns a driver that holds what it is given and programs nothing: what works beside it
// works without it, and what time passes is that of what wraps it.
func Nothing() driver.Driver { return &nothing{holds: state.New()} }

// nothing lacks the methods of driver.Driver that nobody calls.
type nothing struct {
	driver.Driver
	holds *state.State
}

func (n *nothing) Held(f func(*state.State))         { f(n.holds) }
func (n *nothing) Capabilities() driver.Capabilities { return driver.Capabilities{Can: driver.All} }
func (n *nothing) SetAside() []driver.SetAside       { return nil }
func (n *nothing) Purge(context.Context) error       { return nil }
func (n *nothing) Close() error                      { return nil }

func (n *nothing) Adopt(_ context.Context, want *state.State, _ driver.Keep) (driver.Plan, error) {
	return holding(func() { n.holds = want.Clone() }), nil
}

func (n *nothing) Update(_ context.Context, d state.Delta) (driver.Plan, error) {
	return holding(func() { n.holds.Apply(d) }), nil
}

// holding is a plan that programs nothing.
type holding func()

func (holding) Len() int                      { return 1 }
func (holding) String() string                { return "" }
func (holding) Kept() driver.Kept             { return driver.Kept{} }
func (h holding) Apply(context.Context) error { h(); return nil }
