package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// podPoll is how often the agent looks whether it knows a pod by now.
const podPoll = 5 * time.Millisecond

// Attach records an interface that leads to a pod of this node. It returns once the kernel has the
// policies and services that the sources know for the pod's addresses. After an error, the
// interface is not recorded. Safe for concurrent use.
func (a *Agent) Attach(ctx context.Context, at model.Attachment) error {
	at.Node = a.Node
	if a.Links != nil { // without policy, nobody asks which interface leads to a pod
		a.Store.Apply([]store.Event{{Kind: model.AttachmentKind, Name: at.Ref().Name, Object: &at}})
	}
	err := a.admit(ctx, at.Pod)
	if err != nil && slices.Contains(a.Store.Attachments(), &at) { // and not one of its name that came since
		a.Detach(at.Device)
	}
	return err
}

// admit waits until the kernel has what is known of a pod, and the connections of the last owner of
// its address are cut.
func (a *Agent) admit(ctx context.Context, pod model.Name) error {
	for a.Links != nil {
		if p := a.Store.Pod(pod); p != nil && p.Node == a.Node {
			break
		}
		switch {
		case wake.Sleep(ctx, podPoll):
		case !a.Store.Synced():
			return fmt.Errorf("wait for the first read: %w: %w", errNotSynced, ctx.Err())
		default:
			return fmt.Errorf("wait for pod %s: %s does not say that it is on node %s: see that the API server answers, and that --node is right: %w",
				pod, a.Source.Status().Name, a.Node, ctx.Err())
		}
	}
	return a.Wait(ctx, a.Store.Generation(), model.Ref{Kind: model.PodKind, Name: pod})
}

// Detach forgets an interface. Safe for concurrent use.
func (a *Agent) Detach(device string) {
	a.Store.Apply([]store.Event{{Kind: model.AttachmentKind, Name: model.Name{Name: device}}})
}

// handleAttachments serves the CNI plugin's requests.
func (a *Agent) handleAttachments(mux *http.ServeMux) {
	// Plugins up to release 0.2.0 ask for it, and say that the node is not ready without an answer.
	mux.HandleFunc("GET /v1/attachments", answer(func(*http.Request) (any, error) { return a.Store.Attachments(), nil }))
	mux.HandleFunc("PUT /v1/attachments/{device}", answer(func(r *http.Request) (any, error) {
		at, err := attachmentOf(r)
		if err != nil {
			return nil, err
		}
		ctx, cancel := limited(r)
		defer cancel()
		return struct{}{}, a.Attach(ctx, at)
	}))
	mux.HandleFunc("DELETE /v1/attachments/{device}", answer(func(r *http.Request) (any, error) {
		a.Detach(r.PathValue("device"))
		return struct{}{}, nil
	}))
}

// limited is a request's context with the time-out that it asks for.
func limited(r *http.Request) (context.Context, context.CancelFunc) {
	if limit, err := time.ParseDuration(r.URL.Query().Get("timeout")); err == nil {
		return context.WithTimeout(r.Context(), limit)
	}
	return r.Context(), func() {}
}

func attachmentOf(r *http.Request) (at model.Attachment, err error) {
	q := r.URL.Query()
	at = model.Attachment{Device: r.PathValue("device"), Pod: model.Name{Namespace: q.Get("namespace"), Name: q.Get("pod")}}
	var errs []error
	at.Index, err = strconv.Atoi(q.Get("index"))
	errs = append(errs, err)
	for _, text := range q["address"] {
		a, err := netip.ParseAddr(text)
		errs, at.Addrs = append(errs, err), append(at.Addrs, a)
	}
	if at.Pod.Name == "" || at.Pod.Namespace == "" || len(at.Addrs) == 0 {
		errs = append(errs, errors.New("namespace, pod and address are needed"))
	}
	if err := errors.Join(errs...); err != nil {
		return at, fmt.Errorf("read attachment: %w", err)
	}
	return at, nil
}

// reattach forgets the interfaces that are gone. At the start it finds those that an earlier agent
// was told of.
func (l *loop) reattach(links *model.Links) {
	known := l.Store.Attachments()
	var events []store.Event
	if !l.linked {
		for _, at := range links.Attachments(l.Node) {
			if !slices.ContainsFunc(known, func(k *model.Attachment) bool { return k.Device == at.Device }) {
				events = append(events, store.Event{Kind: model.AttachmentKind, Name: at.Ref().Name, Object: at})
			}
		}
	}
	there := map[int]bool{}
	for _, link := range links.Links {
		there[link.Index] = true
	}
	for _, at := range known {
		if !there[at.Index] && l.interfaces[at.Index] == at.Device {
			events = append(events, store.Event{Kind: model.AttachmentKind, Name: at.Ref().Name})
		}
	}
	if len(events) > 0 {
		l.Store.Apply(events)
	}
}

// rerouting records the attempts to put back the routes to a pod.
type rerouting struct {
	contest.Pace
	fault string // of the last attempt; empty: none
}

// reroute puts back the routes to attached pods that another program has removed, as
// systemd-networkd does when it starts anew. It names the contest if it goes on, and the routes
// that cannot be put back.
func (l *loop) reroute(now time.Time) {
	if l.Reroute == nil {
		return
	}
	var put, lost, faults []string
	remembered := map[int]*rerouting{}
	for _, at := range l.Store.Attachments() {
		r := l.rerouted[at.Index]
		if r == nil {
			r = &rerouting{Pace: contest.Pace{First: time.Second, Most: time.Minute, Lasts: contest.Lasts}}
		}
		if !now.Before(r.Due()) && l.restore(at, r) {
			r.Wrote(now)
			put = append(put, at.Pod.String())
		}
		if r.Lost(now) {
			lost = append(lost, at.Pod.String())
		}
		if r.fault != "" {
			faults = append(faults, r.fault)
		}
		if r.fault != "" || !r.Over(now) {
			remembered[at.Index] = r
		}
	}
	l.rerouted = remembered
	if len(put) > 0 {
		l.Log.Warn("another program removed routes to pods, which are put back", "pods", slices.Compact(put))
	}
	l.showRoutes("routes to pods", lost, "another program goes on removing the routes to its pods (%s), which are put back ever more slowly: have it leave them alone (ManageForeignRoutes=no for systemd-networkd)")
	l.showRoutes("missing routes to pods", faults, "it has no route to its pods: %s")
}

// restore puts back the routes to a pod that are gone, and reports whether there were any.
func (l *loop) restore(at *model.Attachment, r *rerouting) (put bool) {
	r.fault = ""
	for _, a := range at.Addrs {
		if l.interfaces[at.Index] != at.Device || l.routes[model.LinkRoute{Prefix: netip.PrefixFrom(a, a.BitLen()), Link: at.Index}] {
			continue
		}
		gone, err := l.Reroute(at.Index, a)
		if put = put || gone; err != nil {
			r.fault = fmt.Sprintf("%s by %s: %v", at.Pod, at.Device, err)
		}
	}
	return put
}

// showRoutes has status show what is wrong with routes, if anything is.
func (l *loop) showRoutes(what string, which []string, format string) {
	if len(which) == 0 {
		l.Contests.Clear(what)
		return
	}
	reason := fmt.Sprintf(format, model.FirstFew(which, 3))
	l.Contests.Set(what, model.Ref{Kind: model.NodeKind, Name: model.Name{Name: l.Node}}.Issue(reason))
}
