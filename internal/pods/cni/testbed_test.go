package cni_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/programs"
	"sluice.dev/sluice/test/world"
)

// debianPlugins is where Debian's containernetworking-plugins are.
const debianPlugins = "/usr/lib/cni"

// testbed is a node in a namespace, with a network configuration.
type testbed struct {
	*testing.T
	node    *world.Host
	data    string // the folder of host-local's store
	program string // sluice-cni
	list    *libcni.NetworkConfigList
	cni     *libcni.CNIConfig
}

// ranges are those of most tests.
const ranges = `"ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]`

// newTestbed makes a node whose network consists of plugins; "{data}" in them is the store's
// folder.
func newTestbed(t *testing.T, version string, plugins ...string) *testbed {
	t.Helper()
	b := &testbed{T: t, node: host(t, "node"), data: t.TempDir(), program: programs.Path(t, "sluice-cni")}
	b.cni = libcni.NewCNIConfigWithCacheDir([]string{filepath.Dir(b.program), debianPlugins}, t.TempDir(), nil)
	b.use(version, plugins...)
	return b
}

// use gives the network other plugins.
func (b *testbed) use(version string, plugins ...string) {
	b.Helper()
	text := fmt.Sprintf(`{"cniVersion": %q, "name": "pods", "plugins": [%s]}`, version, strings.ReplaceAll(strings.Join(plugins, ","), "{data}", b.data))
	var err error
	if b.list, err = libcni.NetworkConfFromBytes([]byte(text)); err != nil {
		b.Fatal(err)
	}
}

// plugin is a configuration of sluice-cni with addresses from a store in the test's folder.
func plugin(ipam string, more ...string) string {
	return fmt.Sprintf(`{"type": "sluice-cni", "ipam": {"type": "host-local", "dataDir": "{data}", %s}%s}`, ipam, strings.Join(append([]string{""}, more...), ", "))
}

// container is one as its runtime knows it.
type container struct {
	*libcni.RuntimeConf
	ns     *world.Host
	result *current.Result
}

// container makes a network namespace.
func (b *testbed) container(name string) *container {
	b.Helper()
	ns := host(b.T, name)
	return &container{ns: ns, RuntimeConf: &libcni.RuntimeConf{
		ContainerID: "container-" + name, NetNS: ns.Path(), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", name}},
	}}
}

// tryAdd calls ADD as a runtime does.
func (b *testbed) tryAdd(c *container) error {
	return b.node.Do(func() error {
		got, err := b.cni.AddNetworkList(b.Context(), b.list, c.RuntimeConf)
		if err != nil {
			return err
		}
		c.result, err = current.NewResultFromResult(got)
		return err
	})
}

// add makes a container that is on the network.
func (b *testbed) add(name string) *container {
	b.Helper()
	c := b.container(name)
	if err := b.tryAdd(c); err != nil {
		b.Fatal(err)
	}
	return c
}

func (b *testbed) tryDel(c *container) error {
	return b.node.Do(func() error { return b.cni.DelNetworkList(b.Context(), b.list, c.RuntimeConf) })
}

func (b *testbed) del(c *container) {
	b.Helper()
	if err := b.tryDel(c); err != nil {
		b.Error(err)
	}
}

func (b *testbed) check(c *container) error {
	return b.node.Do(func() error { return b.cni.CheckNetworkList(b.Context(), b.list, c.RuntimeConf) })
}

func (b *testbed) gc(valid ...*container) error {
	args := &libcni.GCArgs{}
	for _, c := range valid {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: c.ContainerID, IfName: c.IfName})
	}
	return b.node.Do(func() error { return b.cni.GCNetworkList(b.Context(), b.list, args) })
}

func (b *testbed) status() error {
	return b.node.Do(func() error { return b.cni.GetStatusNetworkList(b.Context(), b.list) })
}

// addrs are the container's, as ADD returned them.
func (c *container) addrs() (addrs []netip.Addr) {
	for _, ip := range c.result.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		addrs = append(addrs, a.Unmap())
	}
	return addrs
}

// given lists the addresses that the store says are given.
func (b *testbed) given() (addrs []string) {
	files, err := os.ReadDir(filepath.Join(b.data, "pods"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.Fatal(err)
	}
	for _, f := range files {
		if _, err := netip.ParseAddr(f.Name()); err == nil {
			addrs = append(addrs, f.Name())
		}
	}
	return addrs
}

// veths lists the node's ends of pairs.
func (b *testbed) veths() (names []string) {
	links, err := b.node.LinkList()
	if err != nil {
		b.Fatal(err)
	}
	for _, l := range links {
		if l.Type() == "veth" {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}

// empty fails the test unless nothing is left of any container.
func (b *testbed) empty() {
	b.Helper()
	if given := b.given(); len(given) > 0 {
		b.Errorf("addresses that are still given: %v", given)
	}
	if veths := b.veths(); len(veths) > 0 {
		b.Errorf("interfaces that are left: %v", veths)
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := b.node.RouteList(nil, family)
		if err != nil {
			b.Fatal(err)
		}
		routes = slices.DeleteFunc(routes, func(r netlink.Route) bool { return r.Dst == nil || r.Dst.IP.IsLinkLocalUnicast() })
		if len(routes) > 0 {
			b.Errorf("routes that are left: %v", routes)
		}
	}
}

// call runs the plugin by hand, and returns what it prints and its error; code 0: none.
func (b *testbed) call(env map[string]string, stdin string) (out []byte, failed types.Error) {
	b.Helper()
	for _, c := range [][2]string{{"CNI_CONTAINERID", "c"}, {"CNI_IFNAME", "eth0"}, {"CNI_PATH", filepath.Dir(b.program) + ":" + debianPlugins}} {
		if _, given := env[c[0]]; !given {
			env[c[0]] = c[1]
		}
	}
	cmd := exec.Command(b.program)
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Stdin = strings.NewReader(strings.ReplaceAll(stdin, "{data}", b.data))
	err := b.node.Do(func() (err error) { out, err = cmd.Output(); return err })
	if err == nil {
		return out, types.Error{}
	}
	if jsonErr := json.Unmarshal(out, &failed); jsonErr != nil || failed.Code == 0 {
		b.Fatalf("no error of the specification: %v: %s", err, out)
	}
	return out, failed
}

// reach opens a connection from one host to an address of another, and sends a message.
func reach(t *testing.T, from, in *world.Host, to netip.AddrPort) {
	t.Helper()
	var listener net.Listener
	in.In(func() (err error) { listener, err = net.Listen("tcp", to.String()); return err })
	defer func() { _ = listener.Close() }()
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			_, _ = conn.Write([]byte("hello"))
			_ = conn.Close()
		}
	}()
	err := from.Do(func() error {
		conn, err := net.DialTimeout("tcp", to.String(), 5*time.Second)
		// The table of neighbours is the machine's: others' tests may have filled it.
		for end := time.Now().Add(world.Patience); errors.Is(err, unix.EHOSTUNREACH) && time.Now().Before(end); {
			conn, err = net.DialTimeout("tcp", to.String(), 5*time.Second)
		}
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		var got bytes.Buffer
		if _, err := got.ReadFrom(conn); err != nil || got.String() != "hello" {
			return fmt.Errorf("read %q: %w", got.String(), err)
		}
		return nil
	})
	if err != nil {
		t.Errorf("from %s to %s: %v", from.Name, to, err)
	}
}

// host is a host that detects duplicates of addresses, as it does outside of tests: an attached
// container's addresses can be used at once all the same.
func host(t testing.TB, name string) *world.Host {
	t.Helper()
	h := world.NewHost(t, name)
	h.Set("net.ipv6.conf.default.accept_dad", "1")
	return h
}

// needPlugins skips the test without Debian's containernetworking-plugins; in .ci/run it fails.
func needPlugins(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(debianPlugins); err != nil && os.Getenv("CI") != "" {
		t.Fatal("containernetworking-plugins, which 'make test' installs, is not there:", err)
	} else if err != nil {
		t.Skip("needs the Debian package containernetworking-plugins")
	}
}
