package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/internal/balancer/health"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// patience is how long the kernel may take for a change.
const patience = 2 * time.Minute

// request is a change that somebody waits for.
type request struct {
	edit     func(*change) error
	change   *change // once it is committed
	warnings []string
	err      error
	done     chan struct{}
}

// answer tells who waits what came of it.
func (r *request) answer(err error) {
	r.err = err
	close(r.done)
}

// changes reports whether a request that is committed touches anything.
func (r *request) changes() bool {
	c := r.change
	return len(c.farmEdits.edits)+len(c.addrEdits.edits)+len(c.listEdits.edits) > 0
}

// queue holds requests until Run takes them, all at once.
type queue struct {
	mu      sync.Mutex
	waiting []*request
	closed  bool
	wake    wake.Signal
}

var errStopped = &failure{503, "the balancer is stopping"}

func (q *queue) put(r *request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		r.answer(errStopped)
		return
	}
	q.waiting = append(q.waiting, r)
	q.wake.Set()
}

func (q *queue) take() []*request {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.waiting
	q.waiting = nil
	return all
}

// refuse answers requests that nobody will carry out any more.
func (q *queue) refuse() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, r := range q.waiting {
		r.answer(errStopped)
	}
	q.waiting = nil
}

// submit has a change be carried out, and returns its warnings once the kernel and the state file
// have it. If ctx ends before, what comes of it is not known.
func (s *Source) submit(ctx context.Context, edit func(*change) error) ([]string, error) {
	r := &request{edit: edit, done: make(chan struct{})}
	s.queue.put(r)
	select {
	case <-r.done:
		return r.warnings, r.err
	case <-ctx.Done():
		return nil, &failure{503, "the change was given up waiting for: " + ctx.Err().Error()}
	}
}

// serve carries out requests. They share the wait for the kernel and the state file; if one is
// refused there, each is tried by itself.
func (s *Source) serve(ctx context.Context, all []*request) {
	committed := s.commit(all)
	if len(committed) == 0 {
		return
	}
	err := s.keep(ctx, committed)
	if err == nil {
		for _, r := range committed {
			r.answer(s.forget(ctx, r.change.forget))
		}
		return
	}
	s.takeBack(committed)
	if len(committed) == 1 {
		s.refuse(ctx, committed[0], err)
		return
	}
	for _, r := range committed {
		s.serve(ctx, []*request{r})
	}
}

// refuse answers a request that was taken back because of an error. If the kernel finds the same
// faults without it, the request is not to blame: it is carried out, and answered with a warning.
func (s *Source) refuse(ctx context.Context, r *request, err error) {
	without := s.sync(ctx, r.change.objects())
	if !sameFaults(err, without) {
		if without != nil {
			s.log.Warn("the kernel is at fault without a change that was taken back, too", "reason", without)
		}
		r.answer(refusal(err))
		return
	}
	committed := s.commit([]*request{r})
	if len(committed) == 0 {
		return
	}
	if err = s.keep(ctx, committed); sameFaults(err, without) {
		r.warnings = append(r.warnings, err.Error())
		err = s.save()
	}
	if err != nil {
		s.takeBack(committed)
		r.answer(refusal(err))
		return
	}
	r.answer(s.forget(ctx, r.change.forget))
}

// sameFaults reports whether an error is about faults of objects alone, all of which are in
// another one.
func sameFaults(err, other error) bool {
	now, ok := errors.AsType[*FaultsError](err)
	before, had := errors.AsType[*FaultsError](other)
	return ok && had && !slices.ContainsFunc(now.Issues, func(i model.Issue) bool { return !slices.Contains(before.Issues, i) })
}

// refusal is what is answered if a change can't be kept.
func refusal(err error) error {
	const unchanged = ", and nothing was changed"
	if _, ok := errors.AsType[*stateFileError](err); ok {
		return &failure{503, "the change can't be kept" + unchanged + ": " + err.Error()}
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return &failure{503, "the kernel did not take the change in time" + unchanged}
	}
	if _, ok := errors.AsType[*FaultsError](err); ok {
		return &failure{409, "error generating rules. The change can't be carried out" + unchanged + ": " + err.Error()}
	}
	return &failure{409, "error generating rules. The kernel refuses the change" + unchanged + ": " + err.Error()}
}

// commit has requests take effect in the document and the store, and returns those that did. The
// others are answered.
func (s *Source) commit(all []*request) (committed []*request) {
	for _, r := range all {
		c := newChange(s.doc, s.options.Lenient, s.options.Check)
		c.hasDevice, c.dsrTracks, c.own = s.options.HasDevice, s.options.DSRTracks, s.options.Own
		err := r.edit(c)
		if err == nil {
			err = c.finish()
		}
		if err == nil {
			s.mu.Lock() // nobody but this goroutine changes the document, so that it was read without
			err = c.commit()
			s.mu.Unlock()
		}
		if err != nil {
			r.answer(err)
			continue
		}
		r.change, r.warnings = c, c.warnings
		committed = append(committed, r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deliver(committed, false)
	return committed
}

// takeBack undoes requests.
func (s *Source) takeBack(committed []*request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(committed) - 1; i >= 0; i-- {
		committed[i].change.undo()
	}
	s.deliver(committed, true)
}

// deliver brings the store up to date with what requests touched.
func (s *Source) deliver(committed []*request, back bool) {
	now := s.now()
	checks := map[health.Key]*health.Target{}
	farms, addrs, lists := map[string]*farm{}, map[string]*address{}, map[string]*policy{}
	for _, r := range committed { // the first version of each is the one that was delivered last
		first(farms, r.change.farmEdits.edits, back)
		first(addrs, r.change.addrEdits.edits, back)
		first(lists, r.change.listEdits.edits, back)
	}
	var events []store.Event
	for name, was := range farms {
		f := s.doc.farms[name]
		s.found.follow(name, was, f, checks)
		if served(f) == nil {
			events = append(events, event(name, nil))
			delete(s.rising, name)
			continue
		}
		s.options.Prepare(f.base)
		s.settle(f, now)
		events = append(events, event(name, s.found.effective(f, now)))
	}
	for name, was := range addrs {
		a := s.doc.addresses[name]
		if servedAlone(was) != nil || servedAlone(a) != nil {
			events = append(events, event(aloneName(name), servedAlone(a)))
		}
	}
	for name, was := range lists {
		p := s.doc.policies[name]
		events = append(events, listEvent(name, p))
		s.followFeed(name, was, p)
	}
	if len(events) > 0 {
		s.sink.Apply(events)
	}
	s.setChecks(checks)
}

// first notes what was delivered last of each object: what it was before the first change; or,
// going back, what it was after the last.
func first[T any](was map[string]*T, edits map[string]*edit[T], back bool) {
	for name, e := range edits {
		if _, known := was[name]; back {
			was[name] = e.now
		} else if !known {
			was[name] = e.was
		}
	}
}

// keep waits until the kernel has what was delivered, and writes the state file.
func (s *Source) keep(ctx context.Context, committed []*request) error {
	var objects []model.Ref
	for _, r := range committed {
		objects = append(objects, r.change.objects()...)
	}
	if len(objects) == 0 && !slices.ContainsFunc(committed, (*request).changes) {
		return nil
	}
	if err := s.sync(ctx, objects); err != nil {
		return err
	}
	return s.save()
}

func (s *Source) sync(ctx context.Context, objects []model.Ref) error {
	if s.kernel == nil || len(objects) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return s.kernel.Sync(ctx, objects)
}

// objects are those that are delivered because of a change.
func (c *change) objects() (all []model.Ref) {
	for name := range c.farmEdits.edits {
		all = append(all, (&model.Farm{Name: name}).Ref())
	}
	for name, e := range c.addrEdits.edits {
		if servedAlone(e.was) != nil || servedAlone(e.now) != nil {
			all = append(all, (&model.Farm{Name: aloneName(name)}).Ref())
		}
	}
	for name := range c.listEdits.edits {
		all = append(all, (&model.FarmList{Name: name}).Ref())
	}
	return all
}

// forget has the kernel forget clients.
func (s *Source) forget(ctx context.Context, all []forgetting) error {
	if s.kernel == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, one := range all {
		clients := []model.FlowValues{}
		if one.client != nil {
			clients = append(clients, *one.client)
		} else {
			live, err := s.kernel.Sessions(ctx, one.farm)
			if err != nil {
				return &failure{503, fmt.Sprintf("read sessions of farm '%s': %v", one.farm, err)}
			}
			for _, l := range live {
				if l.Backend == one.backend {
					clients = append(clients, l.Client)
				}
			}
		}
		if len(clients) == 0 {
			continue
		}
		if err := s.kernel.Forget(ctx, one.farm, clients); err != nil {
			return &failure{503, fmt.Sprintf("forget sessions of farm '%s': %v", one.farm, err)}
		}
	}
	return nil
}

// merge is the edit that a document asks for.
func merge(body []byte, set func(*reader)) func(*change) error {
	return func(c *change) error {
		if len(bytes.TrimSpace(body)) == 0 {
			return malformed("The body is empty; give a document, such as {}")
		}
		r := &reader{change: c}
		if set != nil {
			set(r)
		}
		return r.read(bytes.NewReader(body))
	}
}
