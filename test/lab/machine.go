package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/pods/cni/install"
	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/node"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/sandbox"
	"sluice.dev/sluice/test/netns"
)

// disks is a link to the folder that contains the disks of the lab's nodes, and its images.
func (l *Lab) disks() string { return l.path("disks") }

// clusterDNS is the address of the Service kube-dns.
func clusterDNS() []netip.Addr {
	a := plan.ServiceCIDRs[0].Addr().As4()
	a[3] = 10
	return []netip.Addr{netip.AddrFrom4(a)}
}

// pluginFolders are where CNI plugins are that nodes need beside Sluice's own.
var pluginFolders = []string{"/opt/cni/bin", "/usr/lib/cni"}

// nodePlugins are those plugins: containerd calls the first for each pod, and Sluice's
// configuration has the others where they are.
var nodePlugins = []string{"loopback", "portmap", "bandwidth"}

// machine is the configuration of a node that runs the real kubelet.
func (l *Lab) machine(n *plan.Node) (*node.Config, error) {
	c := &node.Config{
		Name: n.Name, Dir: l.path(n.Name), Disk: filepath.Join(l.disks(), n.Name),
		Bin: l.Kubernetes.Bin, Containerd: l.Kubernetes.Containerd, Addrs: n.IPs, ClusterDNS: clusterDNS(), Nameserver: l.Cluster.OutsideIPs[0],
		Base: l.Kubernetes.Disk, Registry: "http://" + registry().String(),
		Folders: map[string]string{filepath.Dir(agent.DefaultSocket): l.runFolder(n.Name)},
	}
	if l.CNI != "" {
		if err := l.setNetwork(c, n); err != nil {
			return nil, err
		}
	} else if !l.installed() { // it brings the plugin, and its configuration
		c.Plugins = append(c.Plugins, filepath.Join(filepath.Dir(l.Sluice), "sluice-cni"))
		network, err := l.nodeNetwork(n)
		if err != nil {
			return nil, err
		}
		c.Network = string(network)
	}
	for _, name := range nodePlugins {
		path, err := findPlugin(name)
		if err != nil {
			return nil, err
		}
		c.Plugins = append(c.Plugins, path)
	}
	if l.Kubernetes.Tested {
		key, err := node.SSHKey(l.SSHKey())
		if err != nil {
			return nil, err
		}
		c.SSHKey = key
	}
	return c, nil
}

// setNetwork gives a node the network that the user wants, with its plugins.
func (l *Lab) setNetwork(c *node.Config, n *plan.Node) (err error) {
	text, plugins, err := sandbox.Configuration(l.CNI, n.PodCIDRs)
	if err != nil {
		return err
	}
	for _, name := range plugins {
		path := filepath.Join(filepath.Dir(l.Sluice), name)
		if unix.Access(path, unix.X_OK) != nil {
			if path, err = findPlugin(name); err != nil {
				return err
			}
		}
		c.Plugins = append(c.Plugins, path)
	}
	c.Network = string(text)
	return nil
}

// SSHKey is the file of the private key with which nodes run commands by SSH, if the lab is tested.
func (l *Lab) SSHKey() string { return l.path(plan.Control, "ssh.key") }

// CheckNodes reports what the machine lacks for nodes of Kubernetes, whose containerd is in a
// folder; "": in PATH.
func CheckNodes(containerd string) error {
	errs := []error{node.Check(containerd)}
	for _, name := range nodePlugins {
		_, err := findPlugin(name)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func findPlugin(name string) (string, error) {
	for _, dir := range pluginFolders {
		path := filepath.Join(dir, name)
		if unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("nodes need the CNI plugin %s, which is in none of the folders %s; on Debian: apt-get install containernetworking-plugins", name, strings.Join(pluginFolders, ", "))
}

// nodeNetwork is the CNI configuration of a node that an agent with --cni installs.
func (l *Lab) nodeNetwork(n *plan.Node) ([]byte, error) {
	portmap, err := findPlugin("portmap")
	if err != nil {
		return nil, err
	}
	o := install.Options{PodCIDRs: n.PodCIDRs, MTU: l.Cluster.Fabric.MTU(), BinDir: filepath.Dir(portmap)}
	if l.agent != nil && l.Kubernetes.Proxy == "" {
		o.Socket = filepath.Join(filepath.Dir(agent.DefaultSocket), filepath.Base(l.socket(n.Name)))
	}
	return o.Config()
}

// prepareNodes makes what the nodes begin with: their objects, and the images on their disks,
// which are held until release is called.
func (l *Lab) prepareNodes(ctx context.Context, exe string) (release func() error, err error) {
	if l.Kubernetes.Disk, err = node.Disk(ctx, l.Kubernetes.Containerd, []string{l.Kubernetes.Images}, append(selfCommand(exe, "node"), "--config")...); err != nil {
		return nil, err
	}
	if err := l.defineNodes(l.Cluster.Nodes...); err != nil {
		return nil, err
	}
	disks, release, err := node.NewDisks()
	if err != nil {
		return nil, err
	}
	if err := os.Symlink(disks, l.disks()); err != nil {
		return nil, errors.Join(fmt.Errorf("make disks: %w", err), release())
	}
	return release, nil
}

// joinNode makes the Node object of a node, if the API says that it has none.
func (l *Lab) joinNode(ctx context.Context, n *plan.Node) error {
	err := l.Plane(func(p *control.Plane) error { return p.Get(ctx, "/api/v1/nodes/"+n.Name, &corev1.Node{}) })
	if errors.Is(err, fs.ErrNotExist) {
		return l.defineNodes(*n)
	}
	return nil // the kubelet waits for an API that does not answer
}

// defineNodes makes the Node objects, with the pod CIDRs that the lab's network has for them. The
// kubelets find them.
func (l *Lab) defineNodes(nodes ...plan.Node) error {
	dir := l.path("nodes")
	if err := makeFolder(dir); err != nil {
		return fmt.Errorf("create folder: %w", err)
	}
	for i := range nodes {
		object := nodes[i].Object(time.Now())
		object.Status = corev1.NodeStatus{} // this is for the kubelet to say
		// As with a Node that a kubelet has made: pods come when it is ready.
		object.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
		data, err := json.Marshal(object)
		if err != nil {
			return fmt.Errorf("define %s: %w", object.Name, err)
		}
		if err := l.write(filepath.Join(dir, object.Name+".json"), data); err != nil {
			return err
		}
	}
	return l.Plane(func(p *control.Plane) error {
		if out, err := p.Kubectl("apply", "--server-side", "-f", dir); err != nil {
			return fmt.Errorf("define the nodes: %w: %s", err, out)
		}
		return nil
	})
}

// startMachine starts a node that runs the real kubelet, on the disk that it has, if any.
func (l *Lab) startMachine(n *plan.Node, exe string) error {
	c, err := l.machine(n)
	if err != nil {
		return err
	}
	err = l.Plane(func(p *control.Plane) error {
		path, err := p.Kubeconfig("system:node:"+n.Name, "system:nodes")
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		authority, err := p.Authority()
		c.Kubeconfig, c.Authority = string(text), string(authority)
		return err
	})
	if err != nil {
		return fmt.Errorf("configure %s: %w", n.Name, err)
	}
	file, err := c.Save()
	if err != nil {
		return err
	}
	return l.start(n.Name, "kubelet", append(selfCommand(exe, "node"), "--config", file))
}

// Stop switches a node off, as a power cut does; Restart switches it on. With wipe its disk is
// gone, too, so that it begins as a new machine.
func (l *Lab) Stop(name string, wipe bool) error {
	if l.Cluster.Node(name) == nil || l.Kubernetes == nil {
		return fmt.Errorf("stop %s: lab %s has no node of that name which can be switched off; choose from %s", name, l.Name, l.nodeNames())
	}
	err := errors.Join(l.stopMachine(name), l.KillProxy(name))
	if err == nil && wipe {
		err = os.RemoveAll(filepath.Join(l.disks(), name))
	}
	return err
}

// stopMachine switches a node off, as a power cut would: of what it ran, its disk stays.
func (l *Lab) stopMachine(name string) error {
	if err := l.process(name, "kubelet").Kill(); err != nil {
		return err
	}
	return node.Kill(l.path(name))
}

// removeMachines removes what the nodes of a lab have outside of its namespaces and its folder.
func (l *Lab) removeMachines() error {
	var errs []error
	files, _ := filepath.Glob(l.path("*", node.File)) // the pattern is well-formed
	for _, file := range files {
		errs = append(errs, node.Kill(filepath.Dir(file)))
	}
	if disks, err := os.Readlink(l.disks()); err == nil {
		errs = append(errs, os.RemoveAll(disks))
	}
	return errors.Join(errs...)
}

// NodeFile is where a file of a node that runs is for this process.
func (l *Lab) NodeFile(name, file string) string { return node.Path(l.path(name), file) }

// linkSandboxes gives the network namespaces of the pods of a node the names that pods have in a
// lab without Kubernetes. They are links, which lead nowhere once the node is off.
func (l *Lab) linkSandboxes(n *plan.Node) error {
	sandboxes, err := node.Sandboxes(l.path(n.Name))
	if err != nil {
		return err
	}
	for _, s := range sandboxes {
		link := filepath.Join(netns.Dir, prefix(l.Name)+s.Name+"."+s.Namespace)
		if to, err := os.Readlink(link); err == nil && to == s.NetNS {
			continue
		}
		if err := os.Symlink(s.NetNS, link+".new"); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if err := os.Rename(link+".new", link); err != nil {
			return err
		}
	}
	return nil
}
