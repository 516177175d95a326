package cni_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/pods/attach"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/world"
)

// A hundred ADDs at once, then as many DELs: each container has addresses of its own and can talk.
func TestManyAtOnce(t *testing.T) {
	b := newTestbed(t, "1.1.0", plugin(ranges))
	all := make([]*container, 100)
	for i := range all {
		all[i] = b.container(fmt.Sprint("c", i))
	}
	each := func(do func(*container) error) {
		t.Helper()
		var wg sync.WaitGroup
		for _, c := range all {
			wg.Go(func() {
				if err := do(c); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	each(b.tryAdd)
	if t.Failed() {
		return
	}
	taken := map[netip.Addr]string{}
	for _, c := range all {
		for _, a := range c.addrs() {
			if other := taken[a]; other != "" {
				t.Errorf("%s has the address %s of %s", c.ContainerID, a, other)
			}
			taken[a] = c.ContainerID
		}
	}
	for i, c := range all {
		for _, a := range all[(i+1)%len(all)].addrs() {
			reach(t, c.ns, all[(i+1)%len(all)].ns, netip.AddrPortFrom(a, 8080))
		}
	}
	each(b.tryDel)
	b.empty()
}

// A second ADD of a container is refused and harms nothing of the first.
func TestAddTwice(t *testing.T) {
	b := newTestbed(t, "1.1.0", plugin(ranges))
	x, y := b.add("x"), b.add("y")
	again := *x
	if err := b.tryAdd(&again); err == nil || !strings.Contains(err.Error(), "call DEL before ADD") {
		t.Errorf("the same container: %v", err)
	}
	// Another namespace of the same container, as a runtime that forgot it would make it.
	other := b.container("other")
	other.ContainerID = x.ContainerID
	if err := b.tryAdd(other); err == nil || !strings.Contains(err.Error(), "call DEL before ADD") {
		t.Errorf("the same container in another namespace: %v", err)
	}
	if err := b.check(x); err != nil {
		t.Error(err)
	}
	// The pod comes back as another container before the runtime takes the first away.
	next := b.container("next")
	next.Args = x.Args
	if err := b.tryAdd(next); err != nil {
		t.Fatal(err)
	}
	b.del(x)
	for _, a := range next.addrs() {
		reach(t, y.ns, next.ns, netip.AddrPortFrom(a, 8080))
	}
	// A second interface of the same container.
	conf := *next.RuntimeConf
	conf.IfName = "net1"
	second := &container{ns: next.ns, RuntimeConf: &conf}
	if err := b.tryAdd(second); err != nil {
		t.Fatal(err)
	}
	for _, a := range next.addrs() { // the default routes stay the first one's
		reach(t, y.ns, next.ns, netip.AddrPortFrom(a, 8080))
	}
	b.del(second)
	if err := b.check(next); err != nil {
		t.Error(err)
	}
	b.del(next)
	b.del(y)
	b.empty()
}

// The store is lost while containers live: their addresses stay theirs, and a second ADD of one of
// them takes nothing from it.
func TestStoreLost(t *testing.T) {
	b := newTestbed(t, "1.1.0", plugin(`"ranges": [[{"subnet": "10.77.0.0/29"}], [{"subnet": "fd77::/64"}]]`))
	x := b.add("x")
	if err := os.RemoveAll(filepath.Join(b.data, "pods")); err != nil {
		t.Fatal(err)
	}
	again := b.container("again")
	again.ContainerID = x.ContainerID
	if err := b.tryAdd(again); err == nil || !strings.Contains(err.Error(), "call DEL before ADD") {
		t.Errorf("the same container in another namespace: %v", err)
	}
	for i := range 4 { // six addresses, one is the gateway's and one x's
		y := b.add(fmt.Sprint("y", i))
		if y.addrs()[0] == x.addrs()[0] || y.addrs()[1] == x.addrs()[1] {
			t.Errorf("%v are given out twice", y.addrs())
		}
		reach(t, y.ns, x.ns, netip.AddrPortFrom(x.addrs()[0], 8080))
	}
	if err := b.tryAdd(again); err == nil {
		t.Error("the same container, once more: no error")
	}
	more := b.container("more")
	if err := b.tryAdd(more); err == nil || !strings.Contains(err.Error(), "4 are given") || !strings.Contains(err.Error(), "and 1 more are the node's own, routed elsewhere") {
		t.Errorf("a range that is full: %v", err)
	}
}

// What the node has itself, as an address of a tunnel out of its pod CIDR, no container gets.
func TestNodeHasAddress(t *testing.T) {
	needPlugins(t)
	b := newTestbed(t, "1.0.0", plugin(ranges))
	b.node.IP("link add tunnel type bridge", "link set tunnel up", "addr add 10.77.0.2/32 dev tunnel", "addr add fd77::2/128 dev tunnel")
	x := b.add("x")
	if got := fmt.Sprint(x.addrs()); got != "[10.77.0.3 fd77::3]" {
		t.Error(got)
	}
	y := b.container("y")
	y.Args = append(y.Args, [2]string{"IP", "10.77.0.2"})
	if err := b.tryAdd(y); err == nil || !strings.Contains(err.Error(), "the node itself has it") {
		t.Errorf("the node's address, asked for: %v", err)
	}
	b.del(x)
	b.use("1.0.0", `{"type": "sluice-cni", "ipam": {"type": "static", "addresses": [{"address": "10.77.0.2/24"}]}}`)
	if err := b.tryAdd(b.container("z")); err == nil || !strings.Contains(err.Error(), "gave 10.77.0.2, which the node itself has") {
		t.Errorf("the node's address, from another IPAM: %v", err)
	}
	b.node.IP("link del tunnel")
	b.empty()
}

// A second ADD of a container does not have another IPAM take the first one's address back.
func TestAddTwiceDelegated(t *testing.T) {
	needPlugins(t)
	b := newTestbed(t, "1.0.0", plugin(ranges))
	program, err := os.ReadFile(filepath.Join(debianPlugins, "host-local"))
	if err != nil {
		t.Fatal(err)
	}
	path := t.TempDir()
	if err := os.WriteFile(filepath.Join(path, "elsewhere"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	conf := `{"cniVersion": "1.0.0", "name": "pods", "type": "sluice-cni", "ipam": {"type": "elsewhere", "dataDir": "{data}", ` + ranges + `}}`
	add := func(c *container) types.Error {
		_, failed := b.call(map[string]string{"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "same", "CNI_NETNS": c.NetNS, "CNI_PATH": path}, conf)
		return failed
	}
	if failed := add(b.container("x")); failed.Code != 0 {
		t.Fatal(failed)
	}
	if failed := add(b.container("y")); !strings.Contains(failed.Msg, "call DEL before ADD") {
		t.Errorf("a second ADD: %+v", failed)
	}
	if got := strings.Join(b.given(), " "); got != "10.77.0.2 fd77::2" {
		t.Errorf("still given: %s", got)
	}
}

// An ADD that is killed at any point leaves nothing that DEL does not remove, and neither what GC
// does not.
func TestKilled(t *testing.T) {
	b := newTestbed(t, "1.1.0", plugin(ranges))
	begin := time.Now()
	b.del(b.add("x"))
	took := time.Since(begin)
	const points = 60
	done := 0
	for i := range points {
		c := b.container(fmt.Sprint("k", i))
		cmd := exec.Command(b.program)
		cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + c.ContainerID, "CNI_NETNS=" + c.NetNS, "CNI_IFNAME=eth0", "CNI_PATH=" + filepath.Dir(b.program)}
		cmd.Stdin = strings.NewReader(`{"cniVersion": "1.1.0", "name": "pods", ` + strings.ReplaceAll(plugin(ranges), "{data}", b.data)[1:])
		if err := b.node.Start(cmd); err != nil {
			t.Fatal(err)
		}
		time.Sleep(took * time.Duration(i) / points) // the point: what is asserted holds at any
		_ = cmd.Process.Kill()
		if cmd.Wait() == nil {
			done++
		}
		if i%2 == 0 {
			b.del(c)
		} else if err := b.gc(); err != nil {
			t.Error(err)
		}
		b.empty()
	}
	if done == points {
		t.Error("no ADD was killed before it was done")
	}
}

// A range that is full is named, with how many addresses are given; nothing of the container is
// left that finds none, and one that goes makes room.
func TestFull(t *testing.T) {
	b := newTestbed(t, "1.1.0", plugin(`"ranges": [[{"subnet": "fd77::/64"}], [{"subnet": "10.77.0.0/29"}]]`))
	var all []*container
	for i := range 5 { // six addresses, of which one is the gateway's
		all = append(all, b.add(fmt.Sprint("c", i)))
	}
	more := b.container("more")
	if err := b.tryAdd(more); err == nil || !strings.Contains(err.Error(), "no address is free in 10.77.0.1-10.77.0.6: 5 are given") {
		t.Errorf("a full range: %v", err)
	}
	if given, veths := len(b.given()), len(b.veths()); given != 10 || veths != 5 {
		t.Errorf("%d addresses and %d interfaces are left of five containers", given, veths)
	}
	b.del(all[2])
	if err := b.tryAdd(more); err != nil {
		t.Error(err)
	}
	for _, c := range append(all, more) {
		b.del(c)
	}
	b.empty()
}

// A namespace that went takes its interface along; DEL gives the addresses back.
func TestVanishedNamespace(t *testing.T) {
	b := newTestbed(t, "1.1.0", plugin(ranges))
	c := b.add("x")
	if err := netns.Delete(c.ns.Name); err != nil {
		t.Fatal(err)
	}
	if err := b.check(c); err == nil || !strings.Contains(err.Error(), "the container is gone") {
		t.Errorf("CHECK: %v", err)
	}
	b.del(c)
	b.empty()
	c.NetNS = ""
	b.del(c)
}

// A store that cannot be written gives an error that says so, and no interface.
func TestBadDisk(t *testing.T) {
	b := newTestbed(t, "1.1.0", plugin(ranges))
	mount := func(options string, flags uintptr) {
		t.Helper()
		if err := unix.Mount("tmpfs", b.data, "tmpfs", flags, options); err != nil {
			t.Fatal(err)
		}
	}
	mount("size=64k,nr_inodes=32", 0)
	t.Cleanup(func() {
		if err := unix.Unmount(b.data, 0); err != nil {
			t.Error(err)
		}
	})
	x := b.add("x")
	full := filepath.Join(b.data, "full")
	f, err := os.Create(full)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) || f.Close() != nil {
		t.Fatal(err)
	}
	y := b.container("y")
	add := func(what string) {
		t.Helper()
		if err := b.tryAdd(y); err == nil || !strings.Contains(err.Error(), "see that the disk has room and may be written to") {
			t.Errorf("%s: %v", what, err)
		}
		if given, veths := len(b.given()), len(b.veths()); given != 2 || veths != 1 {
			t.Errorf("%s: %d addresses and %d interfaces of one container", what, given, veths)
		}
		if err := b.status(); err == nil || !strings.Contains(err.Error(), "see that the disk has room") {
			t.Errorf("%s: STATUS: %v", what, err)
		}
	}
	add("a full disk")
	mount("", unix.MS_REMOUNT|unix.MS_RDONLY)
	add("a read-only disk")
	if err := b.tryDel(x); err == nil || !strings.Contains(err.Error(), "see that the disk") {
		t.Errorf("DEL on a read-only disk: %v", err)
	}
	mount("size=64k,nr_inodes=32", unix.MS_REMOUNT)
	b.del(x)
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	if err := b.tryAdd(y); err != nil {
		t.Error(err)
	}
	b.del(y)
	b.empty()
}

// After a machine lost power, files of the store may be empty or gone.
func TestPowerLoss(t *testing.T) {
	b := newTestbed(t, "1.1.0", plugin(`"ranges": [[{"subnet": "10.77.0.0/30"}]]`))
	b.del(b.add("x"))
	for name, text := range map[string]string{"10.77.0.2": "", "last_reserved_ip.0": "", "lock": "\x00\x00"} {
		if err := os.WriteFile(filepath.Join(b.data, "pods", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.del(b.add("y")) // the only address there is
	if err := os.Remove(filepath.Join(b.data, "pods", "lock")); err != nil {
		t.Fatal(err)
	}
	b.del(b.add("z"))
	b.empty()
}

// No container outlives a boot, and some runtimes call no DEL for those that the machine's end
// took: their addresses are free again. In the same boot, each keeps its own, also one that has it
// from a program that did not write down the boot; and a mark that lost its text with the power is
// none of this boot.
// https://github.com/k3s-io/k3s/issues/4682
func TestBooted(t *testing.T) {
	for _, mark := range []string{"of the boot before\n", ""} {
		b := newTestbed(t, "1.1.0", plugin(`"ranges": [[{"subnet": "10.77.0.0/29", "rangeEnd": "10.77.0.3"}]]`)) // it has two addresses
		store := filepath.Join(b.data, "pods")
		old := b.add("old")
		before := time.Now().AddDate(-1, 0, 0)
		if err := errors.Join(os.WriteFile(filepath.Join(store, "10.77.0.3"), []byte("another\neth0"), 0o600),
			b.tryAdd(b.container("same"))); err == nil || !strings.Contains(err.Error(), "no address is free") {
			t.Errorf("an address is given twice: %v", err)
		}
		if err := errors.Join(attach.Detach(b.node.NS.NS, attach.HostInterface(old.ContainerID, old.IfName)), os.Chtimes(filepath.Join(store, "10.77.0.2"), before, before),
			os.WriteFile(filepath.Join(store, "boot_id"), []byte(mark), 0o600)); err != nil {
			t.Fatal(err)
		}
		young := b.add("young")
		b.del(old) // some runtimes do call it
		if given := strings.Join(b.given(), " "); given != "10.77.0.2 10.77.0.3" {
			t.Errorf("%s are given", given)
		}
		b.del(young)
		if given := strings.Join(b.given(), " "); given != "10.77.0.3" {
			t.Errorf("%s is left", given)
		}
	}
}

// What is no file of the store, though it has an address for its name, is given to nobody, and the
// others go on; DEL of what is no namespace does not wait for it.
func TestForeignEntries(t *testing.T) {
	b := newTestbed(t, "1.1.0", plugin(`"ranges": [[{"subnet": "10.77.0.0/29"}]]`))
	b.del(b.add("first"))
	store := filepath.Join(b.data, "pods")
	if err := errors.Join(os.MkdirAll(filepath.Join(store, "10.77.0.3", "kept"), 0o700), unix.Mkfifo(filepath.Join(store, "10.77.0.4"), 0o600),
		os.Remove(filepath.Join(store, "last_reserved_ip.0")), os.MkdirAll(filepath.Join(store, "last_reserved_ip.0"), 0o700)); err != nil {
		t.Fatal(err)
	}
	x, y, z := b.add("x"), b.add("y"), b.add("z")
	if got := fmt.Sprint(x.addrs(), y.addrs(), z.addrs()); got != "[10.77.0.2] [10.77.0.5] [10.77.0.6]" {
		t.Error(got)
	}
	for says, ip := range map[string]string{"no address is free in 10.77.0.1-10.77.0.6: 3 are given": "", "10.77.0.3, which is no file of the store, has it": "10.77.0.3"} {
		more := b.container("more" + ip)
		if ip != "" {
			more.Args = append(more.Args, [2]string{"IP", ip})
		}
		if err := b.tryAdd(more); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	if err := errors.Join(b.check(x), b.gc(x, y)); err != nil {
		t.Error(err)
	}
	if err := b.status(); err != nil {
		t.Error(err)
	}
	x.NetNS = filepath.Join(store, "10.77.0.4")
	b.del(x)
	b.del(y)
	if got := strings.Join(b.given(), " "); got != "10.77.0.3 10.77.0.4" {
		t.Errorf("left: %s", got)
	}
}

// Whatever is added, taken away and forgotten, by several at once: no address is two containers'.
func TestAddressesProperty(t *testing.T) {
	b := newTestbed(t, "1.1.0", plugin(`"ranges": [[{"subnet": "10.77.0.0/28"}]]`))
	const workers = 4
	var mu sync.Mutex
	live := map[netip.Addr]string{}
	var wg sync.WaitGroup
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for w := range workers {
		random := rand.New(rand.NewPCG(seed, uint64(w)))
		spaces := make([]*container, 5)
		for i := range spaces {
			spaces[i] = b.container(fmt.Sprintf("w%d-%d", w, i))
		}
		wg.Go(func() {
			has := map[int]bool{}
			for round := range 60 {
				i := random.IntN(len(spaces))
				c := spaces[i]
				if has[i] {
					mu.Lock()
					delete(live, c.addrs()[0])
					mu.Unlock()
					if err := b.tryDel(c); err != nil {
						t.Error(err)
					}
					has[i] = false
					continue
				}
				c.ContainerID = fmt.Sprintf("w%d-%d", w, round)
				if err := b.tryAdd(c); err != nil {
					if !strings.Contains(err.Error(), "no address is free") {
						t.Error(err)
					}
					continue
				}
				has[i] = true
				mu.Lock()
				if other := live[c.addrs()[0]]; other != "" {
					t.Errorf("%s has %s of %s", c.ContainerID, c.addrs()[0], other)
				}
				live[c.addrs()[0]] = c.ContainerID
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if got := len(b.given()); got != len(live) {
		t.Errorf("%d addresses are given, %d live", got, len(live))
	}
	if err := b.gc(); err != nil {
		t.Error(err)
	}
	b.empty()
}

// A container that says that it is a router does not become the node's.
func TestRouterAdvertisement(t *testing.T) {
	b := newTestbed(t, "1.1.0", plugin(`"ranges": [[{"subnet": "10.77.0.0/24"}]]`))
	// The control: an interface of the administrator's takes the advertisement.
	far := host(t, "far")
	b.node.Join("uplink", far, "eth0")
	x := b.add("x")
	routes := func() string { return b.node.Exec("ip", "-6", "route", "show", "default") }
	advertise(x.ns)
	advertise(far)
	for end := time.Now().Add(10 * time.Second); !strings.Contains(routes(), "dev uplink") && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		advertise(far)
	}
	if got := routes(); !strings.Contains(got, "dev uplink") || strings.Contains(got, "veth") {
		t.Errorf("the node's default routes: %s", got)
	}
}

// advertise sends a router advertisement from eth0 of a host, once that has an address.
func advertise(h *world.Host) {
	link := h.Device("eth0")
	message := []byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0} // a router for half an hour; the kernel writes the checksum
	to := &unix.SockaddrInet6{Addr: [16]byte{0: 0xff, 1: 2, 15: 1}, ZoneId: uint32(link.Attrs().Index)}
	h.In(func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
			return err
		}
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if err = unix.Sendto(fd, message, 0, to); !errors.Is(err, unix.EADDRNOTAVAIL) || time.Now().After(end) {
				return err // until its own address has passed duplicate detection
			}
		}
	})
}
