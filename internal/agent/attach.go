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

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// podPoll is how often the agent looks whether it knows a pod by now.
const podPoll = 5 * time.Millisecond

// Attach takes note of an interface that leads to a pod of this node. It returns once the kernel
// has what the sources have told of the pod, policies and services, for the pod's addresses. After
// an error, nothing is known of the interface. Safe for concurrent use.
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

// admit waits until the kernel has what is known of a pod, and connections that somebody else had
// by its address are cut.
func (a *Agent) admit(ctx context.Context, pod model.Name) error {
	for a.Links != nil {
		if p := a.Store.Pod(pod); p != nil && p.Node == a.Node {
			break
		}
		select {
		case <-ctx.Done():
			if !a.Store.Synced() {
				return fmt.Errorf("wait for the first read: %w: %w", errNotSynced, ctx.Err())
			}
			return fmt.Errorf("wait for pod %s: %s does not say that it is on node %s: see that the API server answers, and that --node is right: %w",
				pod, a.Source.Status().Name, a.Node, ctx.Err())
		case <-time.After(podPoll):
		}
	}
	if err := a.Wait(ctx, a.Store.Generation(), model.Ref{Kind: model.PodKind, Name: pod}); err != nil || a.AwaitCuts == nil {
		return err
	}
	if err := a.AwaitCuts(ctx); err != nil { // of others' connections, as the pod has none yet
		a.Log.Warn("a pod is attached while connections that policies forbid may go on", "pod", pod, "error", err)
	}
	return nil
}

// Detach forgets an interface. Safe for concurrent use.
func (a *Agent) Detach(device string) {
	a.Store.Apply([]store.Event{{Kind: model.AttachmentKind, Name: model.Name{Name: device}}})
}

// handleAttachments serves what makes pods' interfaces.
func (a *Agent) handleAttachments(mux *http.ServeMux) {
	// Plugins up to release 0.2.0 ask for it, and say that the node is not ready without an answer.
	mux.HandleFunc("GET /v1/attachments", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, a.Store.Attachments())
	})
	mux.HandleFunc("PUT /v1/attachments/{device}", func(w http.ResponseWriter, r *http.Request) {
		at, err := attachmentOf(r)
		if err == nil {
			ctx, cancel := limited(r)
			defer cancel()
			err = a.Attach(ctx, at)
		}
		reply(w, struct{}{}, err)
	})
	mux.HandleFunc("DELETE /v1/attachments/{device}", func(w http.ResponseWriter, r *http.Request) {
		a.Detach(r.PathValue("device"))
		reply(w, struct{}{}, nil)
	})
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

// reattach forgets the interfaces that were there and are gone. At the start it finds those that an
// earlier agent was told of.
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

// reroute puts back the routes to attached pods that another program has removed, as
// systemd-networkd does when it starts anew, and names the contest if it goes on.
func (l *loop) reroute(now time.Time) {
	const what = "routes to pods"
	if l.Reroute == nil || now.Before(l.rerouted.Due()) {
		return
	}
	var pods []string
	var errs []error
	for _, at := range l.Store.Attachments() {
		for _, a := range at.Addrs {
			if l.interfaces[at.Index] != at.Device || l.routes[model.LinkRoute{Prefix: netip.PrefixFrom(a, a.BitLen()), Link: at.Index}] {
				continue
			}
			put, err := l.Reroute(at.Index, a)
			if errs = append(errs, err); put {
				pods = append(pods, at.Pod.String())
			}
		}
	}
	if len(pods) > 0 {
		l.rerouted.Wrote(now)
		l.Log.Warn("another program removed routes to pods, which are put back", "pods", slices.Compact(pods))
	}
	if err := errors.Join(errs...); err != nil {
		l.rerouted.Wrote(now)
		l.Log.Warn("could not put back routes to pods", "error", err)
	}
	if !l.rerouted.Lost(now) {
		l.Contests.Clear(what)
		return
	}
	const reason = "another program goes on removing the routes to its pods, which are put back ever more slowly: have it leave them alone (ManageForeignRoutes=no for systemd-networkd)"
	l.Contests.Set(what, model.Ref{Kind: model.NodeKind, Name: model.Name{Name: l.Node}}.Issue(reason))
}
