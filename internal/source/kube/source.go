package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/source/kinds"
)

// Config says what a source follows, and with which credentials.
type Config struct {
	// Kubeconfig is the path of a kubeconfig file; "" means a pod's own credentials.
	Kubeconfig string
	// Policies also follows policies, the pods that they apply to, and what they refer to. Without
	// it the source follows services, their endpoints and nodes.
	Policies bool
	// Fabric has the source follow what the pod network between nodes is made of beside nodes.
	Fabric bool
	// Addresses has it follow what says which addresses services of type LoadBalancer get.
	Addresses bool
	// BGP has it follow what says who this node's peers are and what is announced to them.
	BGP bool
	// IgnoreRefused has refused policies be ignored, where they would deny otherwise.
	IgnoreRefused bool
	// UserAgent is the User-Agent of requests, such as "sluice/v1.2.3".
	UserAgent string
}

// settle is the time between a complete list and giving garbage back to the kernel: by then the
// other kinds have been read as well, and whoever needs memory for them has it.
const settle = 2 * time.Second

// Source follows one API. Its methods are safe for concurrent use.
type Source struct {
	sink      source.Sink
	log       *slog.Logger
	api       *api
	followers []*follower
	discovery *discovery

	started, ended chan struct{} // closed when Run begins and ends

	mu       sync.Mutex // guards what follows; comes before that of a follower
	synced   bool
	whole    bool        // everything has been read once: nothing is lacking any more
	first    time.Time   // when the first kind was complete
	timer    *time.Timer // ends timing.patience, or gives memory back
	since    time.Time   // when trouble common to several kinds began; zero: there is none
	logAfter *time.Timer // logs the trouble, if it lasts
	outage   bool        // it has been logged
}

var (
	_ source.Source   = (*Source)(nil)
	_ source.Dialer   = (*Source)(nil)
	_ source.Finisher = (*Source)(nil)
)

// New returns a source that delivers to sink.
func New(config Config, sink source.Sink, log *slog.Logger) *Source {
	return newSource(config, usualTiming(), sink, log)
}

func newSource(config Config, t timing, sink source.Sink, log *slog.Logger) *Source {
	s := &Source{
		sink: sink, log: log,
		api:     config.api(t, log),
		started: make(chan struct{}), ended: make(chan struct{}),
	}
	var optional []*follower
	for i := range kinds.All {
		k := &kinds.All[i]
		if !config.follows(k) {
			continue
		}
		f := newFollower(k, s.api, sink, log)
		f.notify, f.tidy, f.ignoreRefused = s.settle, s.tidy, config.IgnoreRefused
		s.followers = append(s.followers, f)
		if k.Optional {
			optional = append(optional, f)
		}
	}
	s.discovery = newDiscovery(s.api, log, optional)
	for _, f := range optional {
		f.lost = s.discovery.soon
	}
	return s
}

// follows reports whether the source follows a kind.
func (c *Config) follows(k *kinds.Kind) bool {
	switch {
	case k.ForFabric:
		return c.Fabric
	case k.ForAddresses:
		return c.Addresses
	case k.ForBGP:
		return c.BGP
	}
	return k.ForServices || c.Policies || k.Kind == model.NamespaceKind && c.Addresses
}

// Run implements source.Source. It may be called once. It never fails: what cannot be read now,
// credentials included, may be there later.
func (s *Source) Run(ctx context.Context) error {
	close(s.started)
	defer close(s.ended)
	var running sync.WaitGroup
	for _, f := range s.followers {
		running.Go(func() { f.run(ctx) })
	}
	if len(s.discovery.followers) > 0 {
		running.Go(func() { s.discovery.run(ctx) })
	}
	running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range []*time.Timer{s.timer, s.logAfter} {
		if t != nil {
			t.Stop()
		}
	}
	return nil
}

// Flush implements source.Source. It reads all lists again, and returns once that is done. Kinds
// that the agent may not read do not count; Issues has them.
func (s *Source) Flush(ctx context.Context) error {
	select {
	case <-s.started:
	case <-ctx.Done():
		return fmt.Errorf("read the Kubernetes API: it isn't followed yet: %w", ctx.Err())
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-s.ended:
			cancel(errors.New("its source has ended"))
		case <-ctx.Done():
		}
	}()
	if len(s.discovery.followers) > 0 {
		// If it fails, the followers that wait for its result say so.
		if _, err := s.discovery.check(ctx); err != nil {
			s.discovery.soon()
		}
	}
	return source.Each(s.followers, func(f *follower) error { return f.flush(ctx) })
}

// settle updates the source's progress. It is called after each change that may matter, with no
// lock held.
func (s *Source) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logOutage()
	s.settleLacking()
	if s.synced {
		return
	}
	missing, some := 0, false
	for _, f := range s.followers {
		switch f.reached() {
		case waiting:
			missing++
		case listed:
			some = true
		}
	}
	if some && s.first.IsZero() {
		s.first = time.Now()
		s.timer = time.AfterFunc(s.api.timing.patience, s.settle)
	}
	if missing > 0 && (s.first.IsZero() || time.Since(s.first) < s.api.timing.patience) {
		return
	}
	s.synced = true
	s.settleLacking()
	s.sink.SetSynced()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.timer = time.AfterFunc(settle, debug.FreeOSMemory)
	where, _ := s.api.credentials.where()
	s.log.Info("read the Kubernetes API", "server", where, "objects", s.objects())
	if lacking, _ := s.lacking(); len(lacking) > 0 {
		s.log.Warn("not everything could be read: what the kernel has stays in it until then", "lacking", lacking)
	}
}

// tidy gives the garbage of each complete list back to the kernel.
func (s *Source) tidy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.synced {
		s.timer.Reset(settle)
	}
}

// settleLacking records when everything has been read.
func (s *Source) settleLacking() {
	if lacking, _ := s.lacking(); s.synced && len(lacking) == 0 {
		s.whole = true
	}
}

// lacking says what was never read, and names it if single objects are all that is lacking.
func (s *Source) lacking() (reasons []string, objects []model.Ref) {
	if s.whole {
		return nil, nil
	}
	single := true
	for _, f := range s.followers {
		why, of := f.lacking()
		reasons, objects = append(reasons, why...), append(objects, of...)
		single = single && (len(why) == 0 || len(of) > 0)
	}
	if !single {
		objects = nil
	}
	return reasons, objects
}

// logOutage logs a trouble common to several kinds once it has lasted for a while, and its end.
func (s *Source) logOutage() {
	affected, reason := s.common()
	switch {
	case reason != "" && s.since.IsZero():
		s.since = time.Now()
		s.logAfter = time.AfterFunc(s.api.timing.last, s.settle)
	case reason != "" && !s.outage && time.Since(s.since) >= s.api.timing.last:
		s.outage = true
		where, _ := s.api.credentials.where()
		says := "the Kubernetes API cannot be read; what was read before stays in force"
		if !s.synced {
			says = "waiting for the Kubernetes API; until it can be read, nothing is changed in the kernel"
		}
		s.log.Warn(says, "server", where, "of", affected, "reason", reason)
	case reason == "" && !s.since.IsZero():
		s.logAfter.Stop()
		if s.outage {
			s.log.Info("the Kubernetes API can be read again", "after", time.Since(s.since).Round(time.Millisecond))
		}
		s.since, s.outage = time.Time{}, false
	}
}

// common returns the trouble whose cause may not lie in single kinds, "" if there is none, and the
// kinds affected.
func (s *Source) common() (affected, reason string) {
	var names []string
	all := true
	for _, f := range s.followers {
		f.mu.Lock()
		switch {
		case f.trouble.common:
			names, reason = append(names, string(f.kind.Kind)), f.trouble.reason
		case f.place != nil:
			all = false
		}
		f.mu.Unlock()
	}
	if all {
		return "Kubernetes API", reason
	}
	return strings.Join(names, ", "), reason
}

// Dialed implements source.Dialer.
func (s *Source) Dialed() []netip.AddrPort { return s.api.dialed.list() }

func (s *Source) objects() map[string]int {
	counts := make(map[string]int)
	for _, f := range s.followers {
		f.mu.Lock()
		if n := f.ledger.usable; n > 0 {
			counts[string(f.kind.Kind)] = n
		}
		f.mu.Unlock()
	}
	return counts
}

// Status implements source.Source.
func (s *Source) Status() source.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settleLacking()
	where, fault := s.api.credentials.where()
	st := source.Status{
		Name: "kubernetes", Where: where, Synced: s.synced,
		Objects: s.objects(), Skipped: map[string]int{}, Issues: []model.Issue{},
	}
	st.Lacking, st.LackingObjects = s.lacking()
	if fault != "" {
		st.Issues = append(st.Issues, model.Issue{Object: model.Ref{Kind: "kubeconfig"}, Reason: fault})
	}
	if affected, reason := s.common(); reason != "" {
		st.Issues = append(st.Issues, model.Issue{Object: model.Ref{Kind: model.Kind(affected)}, Source: where, Reason: reason})
	} else if t := s.discovery.trouble.Load(); t != nil {
		st.Issues = append(st.Issues, model.Issue{Object: model.Ref{Kind: "API discovery"}, Source: where, Reason: "kinds that come or go are not noticed: " + *t})
	}
	for _, f := range s.followers {
		st.Issues = append(st.Issues, f.issues()...)
		following := f.following()
		if !following.Synced && !f.kind.Optional {
			st.Unread = append(st.Unread, f.kind.Kind)
		}
		st.Reconnects += following.Reconnects
		st.Kinds = append(st.Kinds, following)
		f.mu.Lock()
		if n := f.ledger.copies; n > 0 {
			st.Skipped[string(f.kind.Kind)] = n
		}
		f.mu.Unlock()
	}
	st.Issues = slices.Clip(st.Issues)
	return st
}

// Finished implements source.Finisher.
func (s *Source) Finished(ctx context.Context, pod model.Name) (bool, error) {
	type phased struct {
		Status struct{ Phase corev1.PodPhase }
	}
	found, err := named[phased](ctx, s.api, kinds.Find(model.PodKind).Places[0], pod, mediaJSON, false)
	return found != nil && slices.Contains([]corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed}, found.Status.Phase), err
}
