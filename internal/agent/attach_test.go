package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/reconcile"
	"sluice.dev/sluice/internal/store"
)

var newPod = model.Attachment{
	Device: "veth9", Index: 9, Pod: model.Name{Namespace: "shop", Name: "new"}, Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.9")},
}

// Attach waits for the pod's object, and for the kernel; the attachment ends with its interface.
func TestAttach(t *testing.T) {
	links := make(chan model.Links, 1)
	links <- shopLinks()
	b := startPolicy(t, func(c *Config) { c.Links = links })
	deliver := func() {
		b.source.deliver(store.Event{Kind: model.PodKind, Name: newPod.Pod, Object: &model.Pod{Name: newPod.Pod, Node: "node-a"}})
	}
	done := make(chan error, 1)
	go func() { done <- b.Attach(t.Context(), newPod) }()
	eventually(t, "it is known", func() bool { return len(b.Store.Attachments()) == 1 })
	select {
	case err := <-done:
		t.Fatalf("it does not wait: %v", err)
	default:
	}
	deliver()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	device := func() int {
		if w := b.stateCopy().Policy.Workloads[newPod.Addrs[0]]; w != nil && w.Pod == newPod.Pod {
			return w.Device
		}
		return 0
	}
	if device() != 9 {
		t.Error("the pod's workload is not there")
	}
	there := shopLinks()
	links <- there // read before the interface was there
	there.Links = append(there.Links, model.Link{Index: 9, Name: "veth9", Pod: true, Alias: "shop/new"})
	links <- there
	eventually(t, "its links are known", func() bool { b.compiling.Lock(); defer b.compiling.Unlock(); return b.interfaces[9] == "veth9" })
	if device() != 9 {
		t.Error("an attachment goes with links that are older")
	}
	links <- shopLinks()
	eventually(t, "it goes with its interface", func() bool { return len(b.Store.Attachments()) == 0 && device() == 0 })
}

// What was attached before the agent started is known by its alias.
func TestAttachedBefore(t *testing.T) {
	links := make(chan model.Links, 1)
	before := shopLinks()
	before.Links = append(before.Links, model.Link{Index: 9, Name: "veth9", Pod: true, Alias: "shop/new"}, model.Link{Index: 10, Name: "veth10", Pod: true, Alias: "to the router"})
	before.Routes = append(before.Routes, model.LinkRoute{Prefix: netip.MustParsePrefix("10.1.0.9/32"), Link: 9})
	links <- before
	b := startPolicy(t, func(c *Config) { c.Links = links })
	list := b.Store.Attachments()
	if len(list) != 1 || list[0].Device != "veth9" || list[0].Pod != newPod.Pod || len(list[0].Addrs) != 1 || list[0].Node != "node-a" {
		t.Errorf("%+v", list)
	}
}

// A route to an attached pod that is removed is put back, ever more slowly; who goes on removing it
// is named. The routes of interfaces that are gone stay away.
func TestReroute(t *testing.T) {
	links := shopLinks()
	links.Links = append(links.Links, model.Link{Index: 9, Name: "veth9", Pod: true})
	asked := 0
	l := newLoop(New(Config{Node: "node-a", Store: store.New(), Compiler: compile.New(compile.Config{Node: "node-a"}), Driver: newFakeDriver(), Contests: &contest.Board{},
		Log: slog.New(slog.DiscardHandler), AuditInterval: time.Hour,
		Reroute: func(int, netip.Addr) (bool, error) { asked++; return true, nil }}))
	at := newPod
	gone := model.Attachment{Device: "veth8", Index: 8, Pod: model.Name{Namespace: "shop", Name: "old"}, Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.8")}}
	for _, a := range []*model.Attachment{&at, &gone} {
		l.Store.Apply([]store.Event{{Kind: model.AttachmentKind, Name: a.Ref().Name, Object: a}})
	}
	l.rewired(t.Context(), links, true)
	now := time.Now()
	for range 600 { // five minutes
		now = now.Add(reconcile.WatchInterval)
		l.reroute(now)
	}
	if asked < 5 || asked > 15 {
		t.Errorf("put back %d times in five minutes", asked)
	}
	if issues := l.Contests.Issues(); len(issues) != 1 || !strings.Contains(issues[0].Reason, "goes on removing the routes to its pods") {
		t.Errorf("%v", issues)
	}
	links.Routes = append(links.Routes, model.LinkRoute{Prefix: netip.PrefixFrom(at.Addrs[0], 32), Link: 9})
	l.rewired(t.Context(), links, true)
	before := asked
	l.reroute(now.Add(time.Hour))
	if asked != before || len(l.Contests.Issues()) > 0 {
		t.Errorf("put back what is there, or %v", l.Contests.Issues())
	}
}

// Who asks again for the same interface is not undone by what the first call leaves.
func TestAttachAgain(t *testing.T) {
	b := startPolicy(t)
	first, cancel := context.WithCancel(t.Context())
	gone, done := make(chan error, 1), make(chan error, 1)
	go func() { gone <- b.Attach(first, newPod) }()
	index := func() int {
		if all := b.Store.Attachments(); len(all) == 1 {
			return all[0].Index
		}
		return 0
	}
	eventually(t, "the first is known", func() bool { return index() == newPod.Index })
	again := newPod
	again.Index = 10
	go func() { done <- b.Attach(t.Context(), again) }()
	eventually(t, "the second is known", func() bool { return index() == 10 })
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) || index() != 10 {
		t.Errorf("after the first: %v, %d", err, index())
	}
	b.source.deliver(store.Event{Kind: model.PodKind, Name: newPod.Pod, Object: &model.Pod{Name: newPod.Pod, Node: "node-a"}})
	if err := <-done; err != nil || index() != 10 {
		t.Errorf("the second: %v, %d", err, index())
	}
}

// An attachment that cannot be carried out is forgotten, with the reason.
func TestAttachRefused(t *testing.T) {
	b := startPolicy(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := b.Attach(ctx, newPod); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "does not say that it is on node node-a") {
		t.Errorf("an unknown pod: %v", err)
	}
	if list := b.Store.Attachments(); len(list) > 0 {
		t.Errorf("it stays: %+v", list)
	}
}
