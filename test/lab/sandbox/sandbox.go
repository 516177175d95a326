// Package sandbox makes the network of pods as a container runtime does: a namespace for each, with
// an interface and addresses by CNI plugins, which libcni calls.
package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	kernel "sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/pods/attach"
	"sluice.dev/sluice/test/lab/process"
	"sluice.dev/sluice/test/netns"
)

// Config describes the network of a node's pods.
type Config struct {
	Node *netns.NS // the plugins run in its namespace
	Dir  string    // for what the node remembers: addresses that are given, and libcni's results
	Path []string  // folders with plugins
	File string    // the network's configuration, a conflist; without it sluice-cni alone attaches pods
	MTU  int       // of pods, as sluice-cni has it; 0: what the node's devices say
	// Ranges are what plugins with the capability "ipRanges" give addresses of, to each pod one of
	// each.
	Ranges []netip.Prefix
}

// Network attaches the pods of one node. It is safe for concurrent use, of which no two may be
// about the same pod.
type Network struct {
	Config
	list *libcni.NetworkConfigList
	cni  *libcni.CNIConfig
}

// Open reads a network's configuration.
func Open(cfg Config) (*Network, error) {
	list, err := cfg.list()
	if err != nil {
		return nil, fmt.Errorf("read the network's configuration: %w", err)
	}
	return &Network{Config: cfg, list: list, cni: libcni.NewCNIConfigWithCacheDir(cfg.Path, cfg.Dir, nil)}, nil
}

// Check reports whether the network's configuration can be read, and its plugins are there.
func Check(ctx context.Context, cfg Config) error {
	n, err := Open(cfg)
	if err != nil {
		return err
	}
	if _, err := n.cni.ValidateNetworkList(ctx, n.list); err != nil {
		return fmt.Errorf("network configuration %s: %w", cfg.File, err)
	}
	return nil
}

type object = map[string]any

func (c *Config) list() (*libcni.NetworkConfigList, error) {
	if c.File != "" {
		return c.fromFile()
	}
	plugin := object{
		"type": "sluice-cni", "capabilities": object{"ips": true, "ipRanges": true},
		"ipam": object{"type": "host-local", "dataDir": filepath.Join(c.Dir, "addresses")},
	}
	if c.MTU > 0 {
		plugin["mtu"] = c.MTU
	}
	data, err := json.Marshal(object{"cniVersion": current.ImplementedSpecVersion, "name": "pods", "plugins": []object{plugin}})
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(data)
}

// fromFile reads a configuration of the user's. Each node has a store of addresses of its own: what
// one of the machine had would outlive the lab.
func (c *Config) fromFile() (*libcni.NetworkConfigList, error) {
	list, err := libcni.NetworkConfFromFile(c.File)
	if err != nil {
		return nil, err
	}
	return list, complete(list, func(ipam object) {
		if ipam["dataDir"] == nil {
			ipam["dataDir"] = filepath.Join(c.Dir, "addresses")
		}
	})
}

// complete completes what host-local reads in a network's configuration.
func complete(list *libcni.NetworkConfigList, with func(ipam object)) error {
	for i, plugin := range list.Plugins {
		var conf struct{ IPAM object }
		if err := json.Unmarshal(plugin.Bytes, &conf); err != nil {
			return err
		}
		if conf.IPAM["type"] != "host-local" {
			continue
		}
		with(conf.IPAM)
		var err error
		if list.Plugins[i], err = libcni.InjectConf(plugin, object{"ipam": conf.IPAM}); err != nil {
			return err
		}
	}
	return nil
}

// Configuration returns the configuration in a file as a node of Kubernetes with these pod CIDRs
// has it, whose host-local gives addresses of them unless the file says of which, and the names of
// the plugins.
func Configuration(file string, podCIDRs []netip.Prefix) (text []byte, plugins []string, err error) {
	list, err := libcni.NetworkConfFromFile(file)
	if err == nil {
		err = complete(list, func(ipam object) {
			if ipam["ranges"] == nil && ipam["subnet"] == nil {
				ipam["ranges"] = ranges(podCIDRs)
			}
		})
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the network's configuration: %w", err)
	}
	var all []json.RawMessage
	for _, plugin := range list.Plugins {
		all = append(all, plugin.Bytes)
		plugins = append(plugins, plugin.Network.Type)
		if ipam := plugin.Network.IPAM.Type; ipam != "" {
			plugins = append(plugins, ipam)
		}
	}
	text, err = json.Marshal(object{"cniVersion": list.CNIVersion, "name": list.Name, "plugins": all})
	return text, plugins, err
}

// ranges are those that host-local gives addresses of, to each pod one of each.
func ranges(prefixes []netip.Prefix) (all [][]object) {
	for _, p := range prefixes {
		all = append(all, []object{{"subnet": p}})
	}
	return all
}

// timeout is the time that the plugins have for one pod: runtimes give them minutes.
const timeout = 2 * time.Minute

// Pod is a pod of the node. No two of a lab have the same NetNS.
type Pod struct {
	Namespace, Name string
	NetNS           string // the name of its network namespace
}

func (n *Network) runtimeConf(p Pod) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		CapabilityArgs: object{"ipRanges": ranges(n.Ranges)},
		ContainerID:    p.containerID(), NetNS: p.path(), IfName: attach.Interface,
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", p.Namespace}, {"K8S_POD_NAME", p.Name}, {"K8S_POD_INFRA_CONTAINER_ID", p.containerID()}},
	}
}

// Add makes a pod's namespace and gives it its network. It returns the pod's addresses: those that
// are wanted, if there are any and the plugins have the capability "ips". If it fails, nothing
// remains.
func (n *Network) Add(p Pod, want []netip.Addr) (addrs []netip.Addr, err error) {
	ns, err := netns.New(p.NetNS)
	if err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, ns.Close())
		if err != nil {
			_ = netns.Delete(p.NetNS) // the first error says why
		}
	}()
	// Duplicate address detection would delay the first packets by a second or two.
	if err := ns.Sysctl("net/ipv6/conf/default/accept_dad", "0"); err != nil {
		return nil, fmt.Errorf("turn off duplicate address detection in %s (the lab needs a kernel with IPv6): %w", ns.Name, err)
	}
	conf := n.runtimeConf(p)
	if len(want) > 0 {
		conf.CapabilityArgs["ips"] = want
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var result types.Result
	err = n.Node.Do(func() (err error) {
		if result, err = n.cni.AddNetworkList(ctx, n.list, conf); err != nil {
			err = errors.Join(err, n.cni.DelNetworkList(ctx, n.list, conf))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("attach pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return addresses(result)
}

func addresses(result types.Result) (addrs []netip.Addr, err error) {
	r, err := current.NewResultFromResult(result)
	if err != nil {
		return nil, fmt.Errorf("read the plugins' result: %w", err)
	}
	for _, ip := range r.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		addrs = append(addrs, a.Unmap())
	}
	return addrs, nil
}

// Attached returns the addresses of a pod that this node has attached, none unless its interface
// has them still.
func (n *Network) Attached(p Pod) []netip.Addr {
	result, err := n.cni.GetNetworkListCachedResult(n.list, n.runtimeConf(p))
	if err != nil || result == nil {
		return nil
	}
	addrs, err := addresses(result)
	if err != nil || !has(p.NetNS, addrs) {
		return nil
	}
	return addrs
}

// has reports whether the interface in a namespace has these addresses.
func has(name string, addrs []netip.Addr) bool {
	ns, err := netns.Open(name)
	if err != nil {
		return false
	}
	defer ns.Close()
	link, err := ns.LinkByName(attach.Interface)
	if err != nil {
		return false
	}
	list, err := ns.AddrList(link, unix.AF_UNSPEC)
	if err != nil {
		return false
	}
	var have []netip.Addr
	for _, l := range list {
		a, _ := netip.AddrFromSlice(l.IP)
		have = append(have, a.Unmap())
	}
	return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !slices.Contains(have, a) })
}

// Pods lists the pods that this node has attached, whether or not they are still there.
func (n *Network) Pods() ([]Pod, error) {
	list, err := n.cni.GetCachedAttachments("")
	if err != nil {
		return nil, fmt.Errorf("list attached pods: %w", err)
	}
	var pods []Pod
	for _, a := range list {
		p := Pod{NetNS: filepath.Base(a.NetNS)}
		for _, arg := range a.CniArgs {
			switch arg[0] {
			case "K8S_POD_NAMESPACE":
				p.Namespace = arg[1]
			case "K8S_POD_NAME":
				p.Name = arg[1]
			}
		}
		pods = append(pods, p)
	}
	return pods, nil
}

// Remove takes a pod's network back, and removes its namespace with all processes in it. What is
// gone is no error. A namespace of that name that is not own stays: it is another pod's of that
// name.
func (n *Network) Remove(p Pod, own kernel.ID) error {
	conf := n.runtimeConf(p)
	id, there := kernel.IDOf(conf.NetNS)
	there = there && id == own
	if !there {
		conf.NetNS = ""
	} else if err := process.KillIn(p.NetNS); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := n.Node.Do(func() error { return n.cni.DelNetworkList(ctx, n.list, conf) }); err != nil {
		return fmt.Errorf("detach pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	if there {
		return netns.Delete(p.NetNS)
	}
	return nil
}

// ID identifies the namespace that now has the pod's name for one.
func (p Pod) ID() kernel.ID {
	id, _ := kernel.IDOf(p.path())
	return id
}

// containerID is of the form that runtimes give, and the same for the same pod.
func (p Pod) containerID() string {
	sum := sha256.Sum256([]byte(p.NetNS))
	return hex.EncodeToString(sum[:])
}

func (p Pod) path() string { return filepath.Join(netns.Dir, p.NetNS) }
