package agent

import (
	"context"

	"sluice.dev/sluice/internal/model"
)

// subject is what one subject needs of the agent, beside the part of the state that the loop brings
// into the kernel. Fields that it does not need are nil.
type subject struct {
	run     []func(ctx context.Context) // work until ctx ends
	moved   func() bool                 // polls for changes; called under the compiler's lock
	follow  func()                      // takes over what an attempt has changed; called by the loop
	issues  func() []model.Issue        // faults that it found itself
	note    func() string               // of status; "": none
	collect func(samples)
}

// subjectsOf returns the subjects that are on. A new one adds itself here.
func (a *Agent) subjectsOf() []subject {
	list := []subject{a.host(), {collect: collector{a}.collectPolicy}, {collect: collector{a}.collectFarms}}
	if a.Addresses != nil {
		list = append(list, a.addressing())
	}
	if a.Speaker != nil {
		list = append(list, a.speaking())
	}
	if a.Compiler.Fabric != nil {
		list = append(list, a.reaching())
	}
	return list
}

// hear returns an input that has the loop take each value of ch, until ch is closed. A nil ch
// delivers nothing.
func hear[T any](a *Agent, ch <-chan T, take func(*loop, context.Context, T)) func(context.Context) {
	return func(ctx context.Context) {
		for {
			select {
			case <-ctx.Done():
				return
			case v, open := <-ch:
				if !open || a.ask(ctx, func(l *loop) { take(l, ctx, v) }) != nil {
					return
				}
			}
		}
	}
}

// host delivers changes of the host itself.
func (a *Agent) host() subject {
	return subject{run: []func(context.Context){hear(a, a.HostAddresses, (*loop).moved), hear(a, a.Links, (*loop).rewired), hear(a, a.Underlay, (*loop).reached)}}
}
