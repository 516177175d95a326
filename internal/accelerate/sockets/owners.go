package sockets

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// namespaceDirs are where container runtimes bind their pods' network namespaces.
var namespaceDirs = []string{"/run/netns", "/run/docker/netns"}

// owners are the network namespaces whose sockets are served: the node's own, and its pods'. Other
// agents of the machine have others.
type owners struct {
	d      *Driver
	own    uint64 // cookie of the node's
	cancel context.CancelFunc
	ended  chan struct{}
	again  wake.Signal // look at once

	mu     sync.Mutex // of what follows
	on     bool
	denied bool             // other namespaces may not be entered
	pods   map[string]owner // by the path of the namespace's file; replaced, never changed
}

// owner is the network namespace of a pod.
type owner struct {
	id       netns.ID
	cookie   uint64
	addrs    []netip.Addr
	clusters []netip.Prefix // where pods had their addresses when it was found
	found    time.Time
	looked   time.Time
}

// Without a sign of a new one, pods are looked for from time to time: nothing tells that a pod has
// got its default route. A pod that is young is looked at more often, as what redirects its
// connections may come after its interface.
const (
	lookEvery      = 5 * time.Second
	lookYoungEvery = time.Second
	lookOldEvery   = 30 * time.Second
	young          = 5 * time.Minute
)

func watchOwners(ctx context.Context, d *Driver) (*owners, error) {
	own, err := netns.Cookie()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	links, err := link.WatchLinks(ctx, d.log)
	if err != nil {
		cancel()
		return nil, err
	}
	var addrs <-chan []netip.Prefix
	if !d.Driver.Capabilities().AtInput { // where it is, services' addresses are the node's for its sake
		if addrs, err = link.WatchAddresses(ctx, d.log); err != nil {
			cancel()
			return nil, err
		}
		d.own(<-addrs)
	}
	o := &owners{d: d, own: own, cancel: cancel, ended: make(chan struct{}), again: wake.New(), pods: map[string]owner{}}
	go o.run(ctx, links, addrs)
	return o, nil
}

func (o *owners) wait() {
	o.cancel()
	<-o.ended
}

func (o *owners) run(ctx context.Context, links <-chan model.Links, addrs <-chan []netip.Prefix) {
	defer close(o.ended)
	for ctx.Err() == nil {
		o.d.mend()
		pause := lookEvery
		if o.look() {
			pause = lookYoungEvery
		}
		select {
		case <-ctx.Done():
		case <-links:
		case now, is := <-addrs:
			if is {
				o.d.own(now)
			}
		case <-time.After(pause):
		case <-o.again:
		}
	}
}

// serve has all sockets be served, or none.
func (o *owners) serve(on bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if on {
		o.again.Set()
	}
	if o.on == on {
		return
	}
	o.on = on
	var err error
	if on { // those of an earlier agent's pods are served until pods have been looked for
		err = o.d.maps.Namespaces.Put(o.own, uint8(1))
	} else {
		err = o.write(map[uint64]bool{})
	}
	if err != nil {
		o.d.log.Warn("not all sockets are served as they should be", "error", err)
	}
}

// write has the sockets of these namespaces be served, and no others.
func (o *owners) write(served map[uint64]bool) error {
	var gone []uint64
	err := each(o.d.maps.Namespaces, func(cookie uint64, _ uint8) {
		if !served[cookie] {
			gone = append(gone, cookie)
		}
	})
	for cookie := range served {
		err = errors.Join(err, o.d.maps.Namespaces.Put(cookie, uint8(1)))
	}
	return errors.Join(err, drop(o.d.maps.Namespaces, gone))
}

// has reports whether a pod whose sockets are served has an address.
func (o *owners) has(addr netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.pods {
		if slices.Contains(p.addrs, addr) {
			return true
		}
	}
	return false
}

func (o *owners) note() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.denied {
		return "the node's own sockets alone: to find its pods' takes CAP_SYS_ADMIN"
	}
	return fmt.Sprintf("sockets of the node and of %s", model.Count(len(o.pods), "pod"))
}

// look looks for namespaces that have come and gone, and reports whether there are young ones.
func (o *owners) look() (some bool) {
	o.mu.Lock()
	on, before := o.on, o.pods
	o.mu.Unlock()
	if !on {
		return false // where pods have their addresses may not be known yet
	}
	var clusters []netip.Prefix
	o.d.Held(func(s *state.State) {
		if s.Services != nil {
			clusters = s.Services.Settings.ClusterCIDRs
		}
	})
	pods, served, denied := map[string]owner{}, map[uint64]bool{o.own: true}, false
	var errs error
	for path, id := range namespaces() {
		p, known := before[path]
		known = known && p.id == id && slices.Equal(p.clusters, clusters)
		pause := lookYoungEvery
		if time.Since(p.found) > young {
			pause = lookOldEvery
		}
		if !known || time.Since(p.looked) >= pause {
			cookie, addrs, is, err := o.pod(path, clusters)
			if now, _ := netns.IDOf(path); now != id {
				continue // it has gone meanwhile
			}
			if errors.Is(err, unix.EPERM) {
				denied = true
			} else {
				errs = errors.Join(errs, err)
			}
			if !is {
				continue
			}
			if !known {
				p = owner{id: id, cookie: cookie, clusters: clusters, found: time.Now()}
			}
			p.addrs, p.looked = addrs, time.Now()
		}
		some = some || time.Since(p.found) < young
		pods[path], served[p.cookie] = p, true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.on {
		return false
	}
	o.pods, o.denied = pods, denied
	if errs = errors.Join(errs, o.write(served)); errs != nil {
		o.d.log.Warn("the sockets of some pods are not served", "error", errs)
	}
	return some
}

// namespaces are those that have a file where container runtimes bind pods' ones.
func namespaces() map[string]netns.ID {
	there := map[string]netns.ID{}
	for _, dir := range namespaceDirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // this container runtime is not here
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if id, is := netns.IDOf(path); is {
				there[path] = id
			}
		}
	}
	return there
}

// pod returns the cookie of a namespace, and its addresses, if it is a pod's of this node: its
// default route leads here, from an address of a pod if it is known which those are. One that
// redirects its own connections, as to the proxy of a service mesh, counts as none: that proxy has
// to be asked for the service's address. An error that wraps unix.EPERM means that namespaces may
// not be entered.
func (o *owners) pod(path string, clusters []netip.Prefix) (cookie uint64, addrs []netip.Addr, is bool, err error) {
	if !o.near(path) {
		return 0, nil, false, nil
	}
	ns, err := netns.OpenPath(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil, false, nil // it is being made, or has gone
	}
	if err != nil {
		return 0, nil, false, err
	}
	defer func() { _ = ns.Close() }()
	addrs, err = link.Behind(o.d.here, ns)
	isPod := func(a netip.Addr) bool {
		return len(clusters) == 0 || slices.ContainsFunc(clusters, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	if err != nil || !slices.ContainsFunc(addrs, isPod) {
		return 0, nil, false, err
	}
	var redirected bool
	err = ns.Do(func() (err error) {
		if redirected, err = redirects(); err == nil {
			cookie, err = netns.Cookie()
		}
		return err
	})
	return cookie, addrs, !redirected, err
}

// near reports whether a file is a namespace that an interface of the node may lead to. It is asked
// first, as the namespace need not be entered for it.
func (o *owners) near(path string) bool {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	number, err := o.d.here.GetNetNsIdByFd(int(file.Fd()))
	return err == nil && number >= 0
}

// redirects reports whether the calling thread's network namespace may translate connections of its
// own.
func redirects() (bool, error) {
	for _, tables := range []string{"ip_tables_names", "ip6_tables_names"} {
		names, err := os.ReadFile("/proc/thread-self/net/" + tables)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, err
		}
		if slices.Contains(strings.Fields(string(names)), "nat") {
			return true, nil
		}
	}
	chains, err := (&nftables.Conn{}).ListChains()
	return slices.ContainsFunc(chains, func(c *nftables.Chain) bool {
		return c.Type == nftables.ChainTypeNAT && c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookOutput
	}), err
}
