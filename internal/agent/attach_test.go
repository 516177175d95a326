package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/reconcile"
	services "sluice.dev/sluice/internal/services/compile"
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
		if w := reading(b.Agent, b.Compiler.State().Clone).Policy.Workloads[newPod.Addrs[0]]; w != nil && w.Pod == newPod.Pod {
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
// is named, and so is what cannot be put back. Neither slows down other pods. The routes of
// interfaces that are gone stay away.
func TestReroute(t *testing.T) {
	links := shopLinks()
	refused := true
	asked := map[int]int{}
	l := newLoop(New(Config{Node: "node-a", Store: store.New(), Compiler: compile.New(compile.Config{Config: services.Config{Node: "node-a"}}), Driver: newFakeDriver(), Contests: &contest.Board{},
		Log: slog.New(slog.DiscardHandler), AuditInterval: time.Hour,
		Reroute: func(device int, a netip.Addr) (bool, error) {
			asked[device]++
			if device == 7 && refused {
				return false, fmt.Errorf("route %s: %w", a, os.ErrPermission)
			}
			return true, nil
		}}))
	routes := map[int]model.LinkRoute{}
	for i, name := range map[int]string{6: "well", 7: "refused", 8: "gone", 9: "contested"} {
		device, a := fmt.Sprint("veth", i), netip.AddrFrom4([4]byte{10, 1, 0, byte(i)})
		at := &model.Attachment{Device: device, Index: i, Pod: model.Name{Namespace: "shop", Name: name}, Addrs: []netip.Addr{a}}
		l.Store.Apply([]store.Event{{Kind: model.AttachmentKind, Name: at.Ref().Name, Object: at}})
		routes[i] = model.LinkRoute{Prefix: netip.PrefixFrom(a, 32), Link: i}
		if i != 8 {
			links.Links = append(links.Links, model.Link{Index: i, Name: device, Pod: true})
		}
	}
	has := func(devices ...int) {
		there := links
		for _, i := range devices {
			there.Routes = append(slices.Clone(there.Routes), routes[i])
		}
		l.rewired(t.Context(), there)
	}
	now := time.Now()
	pass := func(d time.Duration) {
		for end := now.Add(d); now.Before(end); {
			now = now.Add(reconcile.WatchInterval)
			l.reroute(now)
		}
	}
	says := func() string {
		var all []string
		for _, i := range l.Contests.Issues() {
			all = append(all, i.Reason)
		}
		slices.Sort(all)
		return strings.Join(all, "\n")
	}
	const (
		contested = "another program goes on removing the routes to its pods (shop/contested), which are put back ever more slowly: have it leave them alone (ManageForeignRoutes=no for systemd-networkd)"
		lacking   = "it has no route to its pods: shop/refused by veth7: route 10.1.0.7: permission denied"
	)
	has(6)
	pass(5 * time.Minute)
	if asked[9] < 5 || asked[9] > 15 || asked[8] > 0 || asked[6] > 0 {
		t.Errorf("put back in five minutes: %v", asked)
	}
	if got := says(); got != contested+"\n"+lacking {
		t.Error(got)
	}
	has()
	if pass(reconcile.WatchInterval); asked[6] != 1 {
		t.Error("a pod waits for the routes of another")
	}
	refused = false
	has(6, 9)
	pass(reconcile.WatchInterval)
	has(6, 7, 9)
	if pass(reconcile.WatchInterval); says() != contested {
		t.Errorf("once all routes are there: %s", says())
	}
	clear(asked)
	if pass(time.Hour); len(asked) > 0 || says() != "" || len(l.rerouted) > 0 {
		t.Errorf("put back what is there: %v; says %s; remembers %v", asked, says(), l.rerouted)
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
