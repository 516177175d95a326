package kube

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
	"sluice.dev/sluice/internal/source/kubeobj"
)

const addressLease = "sluice-addresses"

// Addresses writes which addresses Services have into their statuses.
//
// All agents know what is to be written, and one of them writes: the holder of a Lease. The others
// look at the Lease only if something stays unwritten, so they cost the API nothing else.
//
// A status is applied as a field of our own. So an address goes only if it was written from here,
// and a change in the meantime by someone else to anything else stays. Where another controller
// puts its own address back each time, the pauses double. Nothing waits for it. A failure is logged
// once, and tried again.
type Addresses struct {
	// Contests, if set, shows that somebody has the Lease who is none of the nodes that IsNode
	// knows, while something stays unwritten.
	Contests *contest.Board
	IsNode   func(name string) bool

	api   *api
	log   *slog.Logger
	lease *lease
	pace  addressPace
	wake  wake.Signal // set when wanted changes

	mu      sync.Mutex
	wanted  map[model.Name]*wantedStatus
	written map[model.Name]*writtenStatus // of late

	failing bool // the last attempt failed; of Run alone
}

// wantedStatus is what a status is to say.
type wantedStatus struct {
	of    model.Birth
	ips   []netip.Addr
	due   time.Time     // when to write it, or to see whether somebody has
	again time.Duration // how long to wait after the next attempt
}

// writtenStatus is what was written into a status last, and when.
type writtenStatus struct {
	of   model.Birth
	ips  []netip.Addr
	pace contest.Pace
}

// addressPace is how often statuses are written.
type addressPace struct {
	lease  time.Duration // its duration
	spread time.Duration // random delay before an agent that does not have the Lease asks for it
	again  time.Duration // until it is looked at, or written, again; doubles up to most
	most   time.Duration
}

var usualAddressPace = addressPace{lease: 10 * time.Second, spread: time.Second, again: 2 * time.Second, most: 10 * time.Minute}

const (
	writers    = 8   // how many statuses are written at the same time
	maxWritten = 500 // and between two looks at the Lease
)

// NewAddresses returns a writer for the agent of a node. Its Lease is in the namespace of the
// agent's pod, or else in kube-system. It does nothing until it runs.
func NewAddresses(config Config, node string, log *slog.Logger) *Addresses {
	namespace := metav1.NamespaceSystem
	if own, err := os.ReadFile(filepath.Join(podMount, "namespace")); err == nil && config.Kubeconfig == "" {
		namespace = strings.TrimSpace(string(own))
	}
	api := config.api(usualTiming(), log)
	return &Addresses{
		api: api, log: log, pace: usualAddressPace, wake: wake.New(),
		wanted: map[model.Name]*wantedStatus{}, written: map[model.Name]*writtenStatus{},
		lease: newLease(api, namespace, addressLease, node, usualAddressPace.lease),
	}
}

// Want has the status of a Service say that it has these addresses; none: no address. It returns at
// once, and is safe for concurrent use.
func (a *Addresses) Want(service model.Birth, ips []netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := &wantedStatus{of: service, ips: ips, again: a.pace.again}
	if w := a.written[service.Name]; w != nil && w.of.Compare(service) == 0 && slices.Equal(w.ips, ips) {
		s.due = w.pace.Due() // somebody has written over it
	}
	a.wanted[service.Name] = s
	a.wake.Set()
}

// Settled says that the status of a Service says what it should. It returns at once, and is safe
// for concurrent use.
func (a *Addresses) Settled(service model.Name) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.wanted, service)
}

// Run writes until ctx ends, and then gives the Lease back.
func (a *Addresses) Run(ctx context.Context) {
	for {
		wait := a.step(ctx)
		select {
		case <-ctx.Done():
			ended, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			_ = a.lease.release(ended) // or it runs out
			return
		case <-a.wake:
		case <-time.After(wait):
		}
	}
}

// step does what is due, and returns when to come back.
func (a *Addresses) step(ctx context.Context) time.Duration {
	if !a.lease.renewed.IsZero() && time.Now().After(a.lease.renewAt()) {
		a.ask(ctx)
	}
	due, next := a.due()
	if a.Unwritten() == 0 {
		a.Contests.Clear(addressLease)
	}
	if len(due) > 0 && !a.lease.held() {
		a.ask(ctx)
	}
	if a.lease.held() {
		a.writeAll(ctx, due)
		next = min(next, time.Until(a.lease.renewAt()))
	}
	for _, s := range due {
		a.later(s)
	}
	return max(next, 0)
}

// due returns what is to be written now, and when to come back. What is new is written at once by
// the holder of the Lease; the others wait for that.
func (a *Addresses) due() (due map[model.Name]*wantedStatus, next time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	due, next = map[model.Name]*wantedStatus{}, time.Hour
	maps.DeleteFunc(a.written, func(_ model.Name, w *writtenStatus) bool { return w.pace.Over(time.Now()) })
	for name, s := range a.wanted {
		if s.due.IsZero() && !a.lease.held() {
			s.due = time.Now().Add(rand.N(a.pace.spread))
		}
		switch wait := time.Until(s.due); {
		case wait > 0:
			next = min(next, wait)
		case len(due) < maxWritten:
			due[name] = s
			next = min(next, s.again)
		default:
			next = 0
		}
	}
	return due, next
}

// later has something that may be written by now be looked at again.
func (a *Addresses) later(s *wantedStatus) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s.due = time.Now().Add(jitter(s.again))
	s.again = min(2*s.again, a.pace.most)
}

// ask asks for the Lease.
func (a *Addresses) ask(ctx context.Context) {
	had := !a.lease.renewed.IsZero()
	has, err := a.lease.acquire(ctx)
	if ctx.Err() != nil {
		return
	}
	if has && !had {
		a.log.Info("this agent gives Services their addresses", "lease", a.lease.name)
	} else if had && !has {
		a.log.Info("another agent gives Services their addresses", "lease", a.lease.name, "holder", a.lease.seen.Spec.HolderIdentity)
	}
	if holder := a.lease.seen.Spec.HolderIdentity; err == nil && !has && holder != "" && a.IsNode != nil && !a.IsNode(holder) {
		reason := fmt.Sprintf("addresses of Services are not written into their statuses: %q has the Lease %s in namespace %s, and is none of the cluster's nodes; end that program, or have it use another Lease", holder, a.lease.name, a.lease.namespace)
		a.Contests.Set(addressLease, model.Ref{Kind: model.NodeKind, Name: model.Name{Name: a.lease.holder}}.Issue(reason))
	} else if err == nil {
		a.Contests.Clear(addressLease)
	}
	a.failed(err, "the Lease of the agent that gives Services their addresses cannot be had; trying again")
}

// failed logs the first of several failures.
func (a *Addresses) failed(err error, what string) {
	if err != nil && !a.failing {
		a.log.Warn(what, "error", err)
	}
	a.failing = err != nil
}

// writeAll writes statuses, several at a time.
func (a *Addresses) writeAll(ctx context.Context, due map[model.Name]*wantedStatus) {
	if len(due) == 0 {
		return
	}
	var group errgroup.Group
	group.SetLimit(writers)
	for _, s := range due {
		group.Go(func() error {
			if !a.lease.held() {
				return nil
			}
			return a.write(ctx, s.of, s.ips)
		})
	}
	if err := group.Wait(); ctx.Err() == nil {
		a.failed(err, "the addresses of Services cannot be written into their statuses; trying again")
	}
}

// write has a status say which addresses a Service has. Where it has none, what was written from
// here goes.
func (a *Addresses) write(ctx context.Context, of model.Birth, ips []netip.Addr) error {
	var status any
	if len(ips) > 0 {
		mode, lb := corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerStatus{}
		for _, ip := range ips {
			lb.Ingress = append(lb.Ingress, corev1.LoadBalancerIngress{IP: ip.String(), IPMode: &mode})
		}
		status = map[string]any{"loadBalancer": lb}
	}
	kind := kinds.Find(model.ServiceKind)
	there, err := a.api.applyStatus(ctx, kind, kind.Places[0], of.Name, "", kubeobj.AddressManager, status)
	if there && err == nil {
		a.wrote(of, ips)
	}
	return err
}

// wrote notes what a status was told.
func (a *Addresses) wrote(service model.Birth, ips []netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.written[service.Name]
	if w == nil || w.of.Compare(service) != 0 {
		w = &writtenStatus{of: service, pace: contest.Pace{First: a.pace.again, Most: a.pace.most}}
		a.written[service.Name] = w
	}
	w.ips = ips
	w.pace.Wrote(time.Now())
}

// Unwritten returns how many statuses do not say yet what they should. It is safe for concurrent
// use.
func (a *Addresses) Unwritten() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.wanted)
}
