package health

import (
	"context"
	"net/netip"
	"sync"
)

// pool runs checks that block in goroutines, a limited number at a time; the others wait for their
// turn. Its time-out begins when a check does. All methods belong to the loop.
type pool struct {
	free   int // how many more may run now
	queue  []*task
	finish func(ending)
	group  sync.WaitGroup
}

// task is one check of a target, by a function that returns soon after ctx ends.
type task struct {
	target    *target
	pool      *pool
	run       func(context.Context, *probe) outcome
	ctx       context.Context
	abandoned bool
}

// probe is what a task knows of its target, which belongs to the loop.
type probe struct {
	Key
	Check
	at netip.AddrPort
}

// ending is what a task has found.
type ending struct {
	*task
	outcome
}

func newPool(limit int, finish func(ending)) *pool {
	return &pool{free: limit, finish: finish}
}

// start begins a check, or has it wait for its turn.
func (p *pool) start(t *target, run func(context.Context, *probe) outcome) {
	ctx, cancel := context.WithCancel(context.Background())
	k := &task{target: t, pool: p, run: run, ctx: ctx}
	t.cancel = func() {
		k.abandoned = true
		cancel()
	}
	if p.free == 0 {
		p.queue = append(p.queue, k)
		return
	}
	p.free--
	p.launch(k)
}

func (p *pool) launch(k *task) {
	about := &probe{k.target.Key, k.target.check, k.target.at}
	p.group.Go(func() {
		ctx, cancel := context.WithTimeout(k.ctx, about.Timeout)
		defer cancel()
		p.finish(ending{k, k.run(ctx, about)})
	})
}

// next begins the check whose turn it is, in the place of one that has ended.
func (p *pool) next() {
	for len(p.queue) > 0 {
		k := p.queue[0]
		p.queue[0], p.queue = nil, p.queue[1:]
		if !k.abandoned {
			p.launch(k)
			return
		}
	}
	p.free++
}

// wait returns when no check runs. It begins none.
func (p *pool) wait() { p.group.Wait() }
