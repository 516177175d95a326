package kubelet

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/attach"
	"sluice.dev/sluice/internal/netns"
)

// sandbox is a pod's network: its own namespace.
type sandbox struct {
	name      string // of the namespace
	inode     uint64 // distinguishes it from a later one of that name, perhaps made by another node
	hostIface string // the node's end of the pair
}

// podNS returns the name of a pod's network namespace. Pods' names and namespaces are unique in a
// cluster, and no node's name has a dot.
func (k *kubelet) podNS(namespace, name string) string { return k.NSPrefix + name + "." + namespace }

// checkName returns an error if a pod's name is too long for the file of its namespace.
func (k *kubelet) checkName(pod *corev1.Pod) error {
	over := len(k.podNS(pod.Namespace, pod.Name)) - unix.NAME_MAX
	if over <= 0 {
		return nil
	}
	have := len(pod.Name) + len(pod.Namespace)
	return fmt.Errorf("name and namespace of a pod may have at most %d characters together in this lab, and have %d: give it a shorter name",
		have-over, have)
}

// newSandbox gives a pod a namespace with these addresses, or finds the existing one.
func (k *kubelet) newSandbox(pod *corev1.Pod, addrs []netip.Addr) (*sandbox, error) {
	s := &sandbox{name: k.podNS(pod.Namespace, pod.Name), hostIface: attach.HostInterface(pod.Namespace, pod.Name)}
	if len(pod.Status.PodIPs) == 0 && !k.attached(s.hostIface) {
		awaitRemoval(s.name)
	}
	k.building <- struct{}{} // the kernel makes namespaces one by one anyway
	defer func() { <-k.building }()
	if s.has(addrs) && k.attached(s.hostIface) {
		s.inode, _ = inode(filepath.Join(netns.Dir, s.name))
		return s, nil
	}
	if err := k.removeLeftovers(s); err != nil {
		return nil, err
	}
	ns, err := netns.New(s.name)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	s.inode, _ = inode(ns.Path())
	// Duplicate address detection would delay the first packets by a second or two.
	err = ns.Sysctl("net/ipv6/conf/default/accept_dad", "0")
	if err == nil {
		err = attach.Pod(k.node, s.hostIface, ns, attach.Interface, addrs)
	}
	if err != nil {
		return nil, errors.Join(err, netns.Delete(s.name))
	}
	return s, nil
}

// has reports whether the namespace exists and its interface has these addresses.
func (s *sandbox) has(addrs []netip.Addr) bool {
	ns, err := netns.Open(s.name)
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

func (k *kubelet) attached(iface string) bool {
	_, err := k.node.LinkByName(iface)
	return err == nil
}

// awaitRemoval gives another node time to remove its pod of that name.
func awaitRemoval(ns string) {
	for deadline := time.Now().Add(3 * time.Second); exists(ns) && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
}

// removeLeftovers removes what remains of an earlier pod of that name.
func (k *kubelet) removeLeftovers(s *sandbox) error {
	if err := attach.Detach(k.node, s.hostIface); err != nil {
		return err
	}
	if !exists(s.name) {
		return nil
	}
	if err := killProcesses(s.name); err != nil {
		return err
	}
	return netns.Delete(s.name)
}

func exists(ns string) bool {
	_, err := os.Stat(filepath.Join(netns.Dir, ns))
	return err == nil
}

// remove ends the sandbox with everything that runs in it. Removing it twice succeeds. The name
// goes first: if this is interrupted, sweep still finds the interface.
func (s *sandbox) remove(node *netns.NS) error {
	if i, err := inode(filepath.Join(netns.Dir, s.name)); err == nil && i == s.inode {
		if err := errors.Join(killProcesses(s.name), netns.Delete(s.name)); err != nil {
			return err
		}
	}
	return attach.Detach(node, s.hostIface)
}

// killProcesses ends all processes in a network namespace, such as shells of `sluice lab exec`.
func killProcesses(ns string) error {
	target, err := inode(filepath.Join(netns.Dir, ns))
	if err != nil {
		return nil // it is gone
	}
	procs, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	for _, file := range procs {
		if i, err := inode(file); err != nil || i != target {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(file, "/proc/%d/", &pid); err != nil || pid == os.Getpid() {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has just ended
		}
		if i, err := inode(file); err == nil && i == target { // now the number cannot pass to another process
			err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return errors.Join(fmt.Errorf("kill process %d in %s: %w", pid, ns, err), unix.Close(fd))
			}
		}
		_ = unix.Close(fd)
	}
	return nil
}

// inside reports whether this process is in the namespace.
func inside(ns *netns.NS) (bool, error) {
	own, err := inode("/proc/self/ns/net")
	if err != nil {
		return false, err
	}
	other, err := inode(ns.Path())
	return own == other, err
}

// inode identifies a namespace while it exists.
func inode(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("look at %s: %w", path, err)
	}
	return st.Ino, nil
}

// sweep removes the interfaces and namespaces of this node's pods except the named ones,
// "namespace/name".
func (k *kubelet) sweep(keep map[string]bool) error {
	entries, err := os.ReadDir(netns.Dir)
	if err != nil {
		return fmt.Errorf("list network namespaces: %w", err)
	}
	var errs []error
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), k.NSPrefix)
		dot := strings.LastIndexByte(rest, '.') // a namespace has none
		if !ours || dot < 0 || keep[rest[dot+1:]+"/"+rest[:dot]] {
			continue
		}
		s := &sandbox{name: e.Name(), hostIface: attach.HostInterface(rest[dot+1:], rest[:dot])}
		if !k.attached(s.hostIface) {
			continue // of another node
		}
		s.inode, err = inode(filepath.Join(netns.Dir, s.name))
		errs = append(errs, err, s.remove(k.node))
	}
	return errors.Join(errs...)
}
