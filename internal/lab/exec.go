package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/lab/plan"
	"sluice.dev/sluice/internal/netns"
)

// place is somewhere that commands run and traffic comes from.
type place struct {
	node      string // if it is a node
	netns     string
	namespace string // of Kubernetes: where short names are looked up
}

// find finds a place by name: "outside", a node, or a pod as NAME, NAMESPACE/NAME or the name of a
// workload, which stands for its first pod.
func (l *Lab) find(target string) (place, error) {
	if l.Cluster.Node(target) != nil {
		return place{target, l.NodeNS(target), metav1.NamespaceDefault}, nil
	}
	if target == plan.Outside {
		return place{"", l.NodeNS(target), metav1.NamespaceDefault}, nil
	}
	namespace, name, qualified := strings.Cut(target, "/")
	if !qualified {
		namespace, name = "", target
	}
	for _, matches := range []func(*corev1.Pod) bool{
		func(p *corev1.Pod) bool { return p.Name == name },
		func(p *corev1.Pod) bool { return len(p.OwnerReferences) > 0 && p.OwnerReferences[0].Name == name },
	} {
		i := slices.IndexFunc(l.Cluster.Pods, func(p *corev1.Pod) bool {
			return (!qualified || p.Namespace == namespace) && matches(p)
		})
		if i >= 0 {
			p := l.Cluster.Pods[i]
			return place{"", l.PodNS(p), p.Namespace}, nil
		}
	}
	return place{}, fmt.Errorf("find %s in lab %s: no such node, pod or workload; 'sluice lab status --name %s' lists them", target, l.Name, l.Name)
}

// Exec replaces this process by a command that runs at a place of the lab: a node,
// "outside", or a pod. It returns only if that fails.
func (l *Lab) Exec(target string, args []string) error {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return fmt.Errorf("run %s: %w", args[0], err)
	}
	return l.at(target, func() error {
		if err := unix.Exec(path, args, os.Environ()); err != nil {
			return fmt.Errorf("run %s: %w", args[0], err)
		}
		return nil
	})
}

// Start starts a command at a place of the lab, as Exec does, beside this process.
func (l *Lab) Start(target string, cmd *exec.Cmd) error {
	return l.at(target, cmd.Start)
}

// at runs f on a thread in the target's network namespace, with a mount namespace of its
// own in which the lab's names resolve and, on a node, its agent is where it is looked for.
func (l *Lab) at(target string, f func() error) error {
	p, err := l.find(target)
	if err != nil {
		return err
	}
	ns, err := netns.Open(p.netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.Do(func() error {
		if err := l.mountNames(p.namespace); err != nil {
			return fmt.Errorf("make names resolve: %w", err)
		}
		if err := l.mountAgent(p.node); err != nil {
			return fmt.Errorf("show the agent of %s: %w", p.node, err)
		}
		return f()
	})
}

// mountNames covers /etc/hosts and /etc/resolv.conf for the calling thread and its children.
func (l *Lab) mountNames(namespace string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make mount namespace: %w", err)
	}
	// Slaves still see what the host mounts later, and tell it nothing.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("separate mounts: %w", err)
	}
	for _, m := range []struct{ from, over string }{
		{l.hosts(namespace), "/etc/hosts"},
		{l.resolver(), "/etc/resolv.conf"},
	} {
		over, err := filepath.EvalSymlinks(m.over)
		if err != nil { // a file that nobody reads need not be covered, but names come from hosts
			if m.over == "/etc/hosts" {
				return fmt.Errorf("%w: create an empty one", err)
			}
			continue
		}
		if err := unix.Mount(m.from, over, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount over %s: %w", over, err)
		}
	}
	return nil
}

// mountAgent puts a node's agent, if it has one, where commands look for an agent: in the calling thread's
// mount namespace, which is its own, that folder holds nothing but the node's socket and, if they
// were below it, the labs.
func (l *Lab) mountAgent(node string) error {
	if node == "" || l.agent == nil || l.agent.Socket == "" {
		return nil
	}
	folder := filepath.Dir(l.agent.Socket)
	covered := map[string]string{l.agent.Socket: l.socket(node)}
	if strings.HasPrefix(Dir, folder+"/") {
		covered[Dir] = Dir
	}
	files := map[string]*os.File{} // by where they are to be seen
	for at, path := range covered {
		// O_PATH: a socket cannot be opened, and what is covered can still be mounted from here.
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		files[at] = os.NewFile(uintptr(fd), path)
		defer files[at].Close()
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	if err := unix.Mount("tmpfs", folder, "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount over %s: %w", folder, err)
	}
	for at, f := range files {
		if err := showAt(at, f); err != nil {
			return err
		}
	}
	return nil
}

// showAt mounts an open file or folder at a path, which it makes.
func showAt(path string, f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("look at %s: %w", f.Name(), err)
	}
	if info.IsDir() {
		err = os.MkdirAll(path, 0o755)
	} else {
		err = os.WriteFile(path, nil, 0o600)
	}
	if err != nil {
		return fmt.Errorf("make place for %s: %w", f.Name(), err)
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", f.Name(), path, err)
	}
	return nil
}
