package kube

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kubeobj"
	"sluice.dev/sluice/test/logtest"
)

// addressUser returns a kubeconfig file of a user with the rights that the writer needs, in the
// namespace shop.
func (c *realCluster) addressUser(t *testing.T, name string) string {
	user := c.user(t, c.forward(t).url(), name)
	c.put(t, roles, `{"metadata":{"name":"write-`+name+`"},"rules":[{"apiGroups":[""],"resources":["services/status"],"verbs":["patch"]},
		{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["get","create","update"]}]}`)
	c.put(t, bindings, `{"metadata":{"name":"write-`+name+`"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"write-`+name+`"},
		"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"`+name+`"}]}`)
	return user
}

// startAddresses starts a writer with short times, and returns what ends it.
func startAddresses(t *testing.T, kubeconfig, node string, log *slog.Logger, change ...func(*Addresses)) (*Addresses, func()) {
	a := NewAddresses(Config{Kubeconfig: kubeconfig}, node, log)
	a.pace = addressPace{spread: 10 * time.Millisecond, again: 100 * time.Millisecond, most: time.Second}
	a.lease = newLease(a.api, "shop", addressLease, node, 2*time.Second)
	for _, c := range change {
		c(a)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { a.Run(ctx) })
	end := func() { cancel(); running.Wait() }
	t.Cleanup(end)
	return a, end
}

// balancer reads a Service.
func (c *realCluster) balancer(t *testing.T, name string) (s corev1.Service) {
	code, answer := c.ask(t, http.MethodGet, "/api/v1/namespaces/shop/services/"+name, "")
	if err := json.Unmarshal([]byte(answer), &s); code != http.StatusOK || err != nil {
		t.Fatalf("%d, %v: %s", code, err, answer)
	}
	return s
}

// ingress is what the status of a Service says: "192.0.2.1 VIP".
func (c *realCluster) ingress(t *testing.T, name string) string {
	var list []string
	for _, in := range c.balancer(t, name).Status.LoadBalancer.Ingress {
		list = append(list, in.IP+" "+string(*in.IPMode))
	}
	return strings.Join(list, ", ")
}

// A real API server takes addresses into the statuses of Services, from one writer at a time. What
// others wrote stays when the own goes.
func TestRealAddresses(t *testing.T) {
	c := realAPI(t)
	c.shop(t)
	for _, name := range []string{"lb-1", "lb-2"} {
		c.put(t, services, `{"metadata":{"name":"`+name+`","namespace":"shop"},"spec":{"type":"LoadBalancer","allocateLoadBalancerNodePorts":false,"ports":[{"port":80}]}}`)
		t.Cleanup(func() { c.remove(t, "/api/v1/namespaces/shop/services/"+name) })
	}
	t.Cleanup(func() { c.remove(t, "/apis/coordination.k8s.io/v1/namespaces/shop/leases/"+addressLease) })
	one, two := model.Name{Namespace: "shop", Name: "lb-1"}, model.Name{Namespace: "shop", Name: "lb-2"}
	user := c.addressUser(t, "addresses")
	var logs logtest.Log
	log := slog.New(slog.NewTextHandler(&logs, nil))
	first, end := startAddresses(t, user, "n1", log)
	second, _ := startAddresses(t, user, "n2", log)
	both := func(name model.Name, ips ...string) {
		var list []netip.Addr
		for _, ip := range ips {
			list = append(list, netip.MustParseAddr(ip))
		}
		first.Want(model.Birth{Name: name}, list)
		second.Want(model.Birth{Name: name}, list)
	}
	wait := func(name, want string) {
		t.Helper()
		waitFor(t, name+" has "+want, func() bool { return c.ingress(t, name) == want })
	}

	both(one, "192.0.2.1", "2001:db8::1")
	both(model.Name{Namespace: "shop", Name: "gone"}, "192.0.2.9")
	wait("lb-1", "192.0.2.1 VIP, 2001:db8::1 VIP")
	both(one, "192.0.2.2")
	wait("lb-1", "192.0.2.2 VIP")
	if n := strings.Count(logs.String(), "this agent gives Services their addresses"); n != 1 {
		t.Errorf("%d agents write:\n%s", n, logs.String())
	}
	both(one)
	wait("lb-1", "")

	// Another's address is not ours to take.
	if code, answer := c.ask(t, http.MethodPatch, "/api/v1/namespaces/shop/services/lb-2/status", `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.7"}]}}}`); code != http.StatusOK {
		t.Fatalf("%d: %s", code, answer)
	}
	both(two)
	both(one, "192.0.2.3")
	wait("lb-1", "192.0.2.3 VIP")
	wait("lb-2", "192.0.2.7 VIP")

	// The next takes over, from one that gives the Lease back as from one that does not.
	t.Run("given back", func(t *testing.T) {
		end() // if it has it
		second.Want(model.Birth{Name: two}, []netip.Addr{netip.MustParseAddr("192.0.2.8")})
		wait("lb-2", "192.0.2.8 VIP")
	})
	t.Run("run out", func(t *testing.T) {
		dead := newLease(second.api, "shop", "dead", "n1", time.Second)
		t.Cleanup(func() { c.remove(t, "/apis/coordination.k8s.io/v1/namespaces/shop/leases/dead") })
		if has, err := dead.acquire(t.Context()); !has || err != nil || !dead.held() {
			t.Fatalf("the lease is not had: %v, %v", has, err)
		}
		next := newLease(second.api, "shop", "dead", "n2", time.Second)
		begun := time.Now()
		waitFor(t, "the lease runs out", func() bool {
			has, err := next.acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return has
		})
		if took := time.Since(begun); took < time.Second {
			t.Errorf("it was taken after %v", took)
		}
		if has, err := dead.acquire(t.Context()); has || err != nil || dead.held() {
			t.Errorf("the dead one has it: %v, %v", has, err)
		}
	})
}

// With another controller that puts its own address back at once, a status is written ever more
// rarely, and the Service names the other. When that ends, the status says what it should.
func TestRealAddressesContested(t *testing.T) {
	c := realAPI(t)
	c.shop(t)
	const path = "/api/v1/namespaces/shop/services/lb-4"
	c.put(t, services, `{"metadata":{"name":"lb-4","namespace":"shop"},"spec":{"type":"LoadBalancer","allocateLoadBalancerNodePorts":false,"ports":[{"port":80}]}}`)
	t.Cleanup(func() { c.remove(t, path) })
	t.Cleanup(func() { c.remove(t, "/apis/coordination.k8s.io/v1/namespaces/shop/leases/contested") })
	a, _ := startAddresses(t, c.addressUser(t, "contested"), "n1", slog.New(slog.DiscardHandler), func(a *Addresses) {
		a.lease.name, a.pace.again, a.pace.most = "contested", time.Second, time.Minute
	})
	name, ours := model.Name{Namespace: "shop", Name: "lb-4"}, []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	wanted, wins := false, 0
	follow := func() string { // as the compiler does
		s := c.balancer(t, "lb-4")
		known, err := kubeobj.Service(&s)
		if err != nil {
			t.Fatal(err)
		}
		if right := slices.Equal(known.LoadBalancer.Ingress, ours); right && wanted {
			wanted, wins = false, wins+1
			a.Settled(name)
		} else if !right && !wanted {
			wanted = true
			a.Want(model.Birth{Name: name}, ours)
		}
		return known.LoadBalancer.Writer
	}
	named := false
	for begun := time.Now(); time.Since(begun) < 10*time.Second; time.Sleep(20 * time.Millisecond) {
		writer := follow()
		if !wanted {
			if code, answer := c.ask(t, http.MethodPatch, path+"/status?fieldManager=other-controller", `{"status":{"loadBalancer":{"ingress":[{"ip":"10.0.0.5"}]}}}`); code != http.StatusOK {
				t.Fatalf("%d: %s", code, answer)
			}
		}
		named = named || writer == "other-controller"
	}
	if wins < 3 || wins > 4 || !named { // at 0, 1, 3 and 7 s
		t.Errorf("%d writes within 10 s; the other is named: %v", wins, named)
	}
	waitFor(t, "the status stays once nobody else writes it", func() bool { follow(); return !wanted })
}

// What the API does not allow is logged once and tried again, and is done once it is allowed.
func TestRealAddressesDenied(t *testing.T) {
	c := realAPI(t)
	c.shop(t)
	c.put(t, services, `{"metadata":{"name":"lb-3","namespace":"shop"},"spec":{"type":"LoadBalancer","allocateLoadBalancerNodePorts":false,"ports":[{"port":80}]}}`)
	t.Cleanup(func() { c.remove(t, "/api/v1/namespaces/shop/services/lb-3") })
	t.Cleanup(func() { c.remove(t, "/apis/coordination.k8s.io/v1/namespaces/shop/leases/denied") })
	user := c.user(t, c.forward(t).url(), "denied-addresses")
	var logs logtest.Log
	a, _ := startAddresses(t, user, "n1", slog.New(slog.NewTextHandler(&logs, nil)), func(a *Addresses) { a.lease.name = "denied" })
	a.Want(model.Birth{Name: model.Name{Namespace: "shop", Name: "lb-3"}}, []netip.Addr{netip.MustParseAddr("192.0.2.1")})
	waitFor(t, "it is refused", func() bool { return strings.Contains(logs.String(), "forbidden") })
	if a.Unwritten() != 1 {
		t.Errorf("%d are unwritten", a.Unwritten())
	}
	text, err := os.ReadFile(c.addressUser(t, "allowed-addresses"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, user, string(text)) // the file of the user who may
	waitFor(t, "it is written", func() bool { return c.ingress(t, "lb-3") == "192.0.2.1 VIP" })
	a.Settled(model.Name{Namespace: "shop", Name: "lb-3"})
	if n := strings.Count(logs.String(), "level=WARN"); n != 1 || a.Unwritten() != 0 {
		t.Errorf("%d warnings, %d unwritten:\n%s", n, a.Unwritten(), logs.String())
	}
}

// Somebody who has the Lease and is no node is named as long as a status stays unwritten; an agent
// that has it is not.
func TestRealAddressesLeaseTaken(t *testing.T) {
	c := realAPI(t)
	c.shop(t)
	c.put(t, services, `{"metadata":{"name":"lb-5","namespace":"shop"},"spec":{"type":"LoadBalancer","allocateLoadBalancerNodePorts":false,"ports":[{"port":80}]}}`)
	t.Cleanup(func() { c.remove(t, "/api/v1/namespaces/shop/services/lb-5") })
	const leases = "/apis/coordination.k8s.io/v1/namespaces/shop/leases"
	take := func(holder string) {
		code, answer := c.ask(t, http.MethodPost, leases, `{"metadata":{"name":"taken"},"spec":{"holderIdentity":"`+holder+`","leaseDurationSeconds":3600}}`)
		if code == http.StatusConflict {
			code, answer = c.ask(t, http.MethodPatch, leases+"/taken", `{"spec":{"holderIdentity":"`+holder+`"}}`)
		}
		if code/100 != 2 {
			t.Fatalf("%d: %s", code, answer)
		}
	}
	take("somebody")
	t.Cleanup(func() { c.remove(t, leases+"/taken") })
	board := &contest.Board{}
	a, _ := startAddresses(t, c.addressUser(t, "taken"), "n1", silentLog, func(a *Addresses) {
		a.lease.name, a.pace.again, a.pace.most = "taken", 200*time.Millisecond, 200*time.Millisecond
		a.Contests, a.IsNode = board, func(name string) bool { return name == "n1" || name == "n2" }
	})
	name := model.Name{Namespace: "shop", Name: "lb-5"}
	a.Want(model.Birth{Name: name}, []netip.Addr{netip.MustParseAddr("192.0.2.1")})
	waitFor(t, "it is shown", func() bool { return len(board.Issues()) == 1 })
	if reason := board.Issues()[0].Reason; !strings.Contains(reason, `"somebody" has the Lease taken in namespace shop`) {
		t.Error(reason)
	}
	take("n2")
	waitFor(t, "an agent is not", func() bool { return len(board.Issues()) == 0 })
	take("somebody")
	waitFor(t, "it is shown again", func() bool { return len(board.Issues()) == 1 })
	c.remove(t, leases+"/taken")
	waitFor(t, "the status is written", func() bool { return c.ingress(t, "lb-5") == "192.0.2.1 VIP" })
	waitFor(t, "nothing is shown any more", func() bool { return len(board.Issues()) == 0 })
}
