package cni_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"

	"sluice.dev/sluice/internal/netns"
)

// Two containers get addresses through libcni, as a runtime calls it, reach each other, and give
// the addresses back.
func TestAddAndDel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "sluice-cni"), "sluice.dev/sluice/cmd/sluice-cni").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	conf, err := libcni.NetworkPluginConfFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "pods", "type": "sluice-cni",
		"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.77.0.0/29"}], [{"subnet": "fd77::/64"}]]}}`, filepath.Join(dir, "data")))
	if err != nil {
		t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "pods", "plugins": [%s]}`, conf.Bytes))
	if err != nil {
		t.Fatal(err)
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{dir}, filepath.Join(dir, "cache"), nil)
	node := namespace(t, "node")
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := node.Sysctl(key, "1"); err != nil {
			t.Fatal(err)
		}
	}
	pods := map[string]*libcni.RuntimeConf{}
	addrs, spaces := map[string][]netip.Addr{}, map[string]*netns.NS{}
	for _, name := range []string{"a", "b"} {
		ns := namespace(t, name)
		spaces[name] = ns
		pods[name] = &libcni.RuntimeConf{ContainerID: "container-" + name, NetNS: ns.Path(), IfName: "eth0", Args: [][2]string{{"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", name}}}
		err := node.Do(func() error {
			got, err := cni.AddNetworkList(t.Context(), list, pods[name])
			if err != nil {
				return err
			}
			r, err := current.NewResultFromResult(got)
			for _, ip := range r.IPs {
				a, _ := netip.AddrFromSlice(ip.Address.IP)
				addrs[name] = append(addrs[name], a.Unmap())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(addrs["a"]) != 2 || len(addrs["b"]) != 2 || addrs["a"][0] == addrs["b"][0] {
		t.Fatalf("addresses: %v", addrs)
	}
	for _, to := range addrs["b"] {
		reach(t, spaces["a"], spaces["b"], netip.AddrPortFrom(to, 8080))
	}
	for range 2 { // a second time is no error
		for name := range pods {
			if err := node.Do(func() error { return cni.DelNetworkList(t.Context(), list, pods[name]) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "data", "pods", "1*")); len(left) > 0 {
		t.Errorf("addresses that are still given: %v", left)
	}
	if links, err := node.LinkList(); err != nil || len(links) != 1 {
		t.Errorf("links that are left: %v, %v", links, err)
	}
}

// reach opens a connection from one namespace to an address in another.
func reach(t *testing.T, from, in *netns.NS, to netip.AddrPort) {
	t.Helper()
	var listener net.Listener
	err := in.Do(func() (err error) { listener, err = net.Listen("tcp", to.String()); return err })
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	err = from.Do(func() error {
		conn, err := net.DialTimeout("tcp", to.String(), 5*time.Second)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	if err != nil {
		t.Errorf("from %s to %s: %v", from.Name, to, err)
	}
}

func namespace(t *testing.T, name string) *netns.NS {
	t.Helper()
	ns, err := netns.New(fmt.Sprintf("sluice-cni-%d-%s", os.Getpid(), name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Delete(); err != nil {
			t.Error(err)
		}
	})
	return ns
}
