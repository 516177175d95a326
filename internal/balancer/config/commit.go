package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"sluice.dev/sluice/internal/balancer/health"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// patience is how long the kernel may take for a change.
const patience = 2 * time.Minute

// request is a change that somebody waits for.
type request struct {
	edit     func(*revision) error
	change   *revision // once it is committed
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

var errStopped = &failure{503, "the balancer is stopping"}

// submit has a change be carried out, and returns its warnings once the kernel and the state file
// have it. If ctx ends before, what comes of it is not known.
func (s *Source) submit(ctx context.Context, edit func(*revision) error) ([]string, error) {
	r := &request{edit: edit, done: make(chan struct{})}
	select {
	case s.requests <- r:
	case <-s.stopped:
		return nil, errStopped
	case <-ctx.Done():
	}
	select {
	case <-r.done:
		return r.warnings, r.err
	case <-ctx.Done():
		return nil, &failure{503, "the change was given up waiting for: " + ctx.Err().Error()}
	}
}

// waiting returns a request, and all others that wait at the moment.
func (s *Source) waiting(first *request) []*request {
	for all := []*request{first}; ; {
		select {
		case r := <-s.requests:
			all = append(all, r)
		default:
			return all
		}
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
	before := s.doc // nobody but this goroutine replaces it
	now := before
	for _, r := range all {
		c := newRevision(now, s.options)
		err := r.edit(c)
		if err == nil {
			err = c.finish()
		}
		if err != nil {
			r.answer(err)
			continue
		}
		r.change, r.warnings, now = c, c.warnings, c.document
		committed = append(committed, r)
	}
	s.replace(before, now, committed)
	return committed
}

// takeBack undoes requests, after which none was committed.
func (s *Source) takeBack(committed []*request) {
	s.replace(s.doc, committed[0].change.before, committed)
}

// replace puts a document in the place of another one, and brings the store up to date with what
// requests touched.
func (s *Source) replace(was, now *document, committed []*request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doc = now
	farms, addresses, policies := map[string]edit[*farm]{}, map[string]edit[*address]{}, map[string]edit[*policy]{}
	for _, r := range committed {
		maps.Copy(farms, r.change.farmEdits.edits)
		maps.Copy(addresses, r.change.addrEdits.edits)
		maps.Copy(policies, r.change.listEdits.edits)
	}
	at := s.now()
	checks := map[health.Key]*health.Target{}
	var events []store.Event
	for name := range farms {
		f := now.farms.Get(name)
		s.found.follow(name, was.farms.Get(name), f, checks)
		if served(f) == nil {
			events = append(events, event(name, nil))
			delete(s.rising, name)
			continue
		}
		s.options.Prepare(f.base)
		events = append(events, s.farmEvent(f, at))
	}
	for name := range addresses {
		a := now.addresses.Get(name)
		if servedAlone(was.addresses.Get(name)) != nil || servedAlone(a) != nil {
			events = append(events, event(aloneName(name), servedAlone(a)))
		}
	}
	for name := range policies {
		p := now.policies.Get(name)
		events = append(events, listEvent(name, p))
		s.followFeed(name, feedOf(was.policies.Get(name)), feedOf(p))
	}
	if len(events) > 0 {
		s.sink.Apply(events)
	}
	s.setChecks(checks)
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
func (r *revision) objects() (all []model.Ref) {
	for name := range r.farmEdits.edits {
		all = append(all, (&model.Farm{Name: name}).Ref())
	}
	for name, e := range r.addrEdits.edits {
		if servedAlone(e.was) != nil || servedAlone(e.now) != nil {
			all = append(all, (&model.Farm{Name: aloneName(name)}).Ref())
		}
	}
	for name := range r.listEdits.edits {
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
func merge(body []byte, set func(*reader)) func(*revision) error {
	return func(c *revision) error {
		if len(bytes.TrimSpace(body)) == 0 {
			return malformed("The body is empty; give a document, such as {}")
		}
		r := &reader{revision: c}
		if set != nil {
			set(r)
		}
		return r.read(bytes.NewReader(body))
	}
}
