package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/netns"
)

// place is where commands run and traffic comes from.
type place struct {
	node      string // if it is a node, or a pod on its network
	netns     string
	namespace string // of Kubernetes: where short names are resolved
}

// find finds a place by name: "outside", a node, or a pod as NAME, NAMESPACE/NAME or the name of a
// workload, which means its first pod.
func (l *Lab) find(target string) (place, error) {
	if l.Cluster.Node(target) != nil {
		return place{target, l.NodeNS(target), metav1.NamespaceDefault}, nil
	}
	if target == plan.Outside || target == plan.Control && l.Kubernetes != nil {
		return place{"", l.NodeNS(target), metav1.NamespaceDefault}, nil
	}
	namespace, name, qualified := strings.Cut(target, "/")
	if !qualified {
		namespace, name = "", target
	}
	for _, matches := range []func(*corev1.Pod) bool{
		func(p *corev1.Pod) bool { return p.Name == name },
		func(p *corev1.Pod) bool { return plan.WorkloadOf(p) == p.Namespace+"/"+name },
	} {
		i := slices.IndexFunc(l.Cluster.Pods, func(p *corev1.Pod) bool {
			return (!qualified || p.Namespace == namespace) && matches(p)
		})
		if i >= 0 {
			p := l.Cluster.Pods[i]
			node := ""
			if p.Spec.HostNetwork {
				node = p.Spec.NodeName
			}
			return place{node, l.PodNS(p), p.Namespace}, nil
		}
	}
	return place{}, fmt.Errorf("find %s in lab %s: no such node, pod or workload; 'sluice lab status --name %s' lists them", target, l.Name, l.Name)
}

// Exec replaces this process by a command that runs at a place of the lab: a node, "outside", or a
// pod. The command sluice is always the lab's own. Exec returns only on failure.
func (l *Lab) Exec(target string, args []string) error {
	path, err := l.lookPath(args[0])
	if err != nil {
		return fmt.Errorf("run %s: %w", args[0], err)
	}
	return l.at(target, func() error {
		if err := unix.Exec(path, args, l.environ()); err != nil {
			return fmt.Errorf("run %s: %w", args[0], err)
		}
		return nil
	})
}

// environ is this process's environment, with the lab's own sluice first in PATH, for shells.
func (l *Lab) environ() []string {
	env := os.Environ()
	if l.Sluice != "" {
		env = slices.DeleteFunc(env, func(v string) bool { return strings.HasPrefix(v, "PATH=") })
		env = append(env, "PATH="+filepath.Dir(l.Sluice)+":"+os.Getenv("PATH"))
	}
	return env
}

func (l *Lab) lookPath(command string) (string, error) {
	if command == "sluice" && l.Sluice != "" {
		return l.Sluice, nil
	}
	path, err := exec.LookPath(command)
	if errors.Is(err, exec.ErrNotFound) {
		return "", errors.New("this machine has no such program in PATH")
	}
	return path, err
}

// Start starts a command at a place of the lab, as Exec does, beside this process.
func (l *Lab) Start(target string, cmd *exec.Cmd) error {
	return l.at(target, cmd.Start)
}

// refreshNames updates names to the present cluster, in a lab that has an API.
func (l *Lab) refreshNames() error {
	if l.Kubernetes == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), namesTimeout)
	defer cancel()
	if err := l.refresh(ctx); err != nil {
		return err
	}
	return l.writeHosts()
}

// firstLine returns the first line of an error that repeats itself for several things.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// namesTimeout is the time-out for reading names from the API.
const namesTimeout = 20 * time.Second

// at runs f on a thread in the target's network namespace. The thread has a mount namespace of its
// own in which the lab's names resolve and, on a node, its agent's socket has its usual path.
func (l *Lab) at(target string, f func() error) error {
	if err := l.refreshNames(); err != nil {
		// A broken API may be what the user wants to inspect.
		fmt.Fprintf(os.Stderr, "lab %s: cannot read the API, so names are from the last time it was read: %s\n", l.Name, firstLine(err))
	}
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
		runtime.LockOSThread() // it ends with this function: nobody else may work among these mounts
		if err := l.mountNames(p.namespace); err != nil {
			return fmt.Errorf("make names resolve: %w", err)
		}
		if err := l.mountAgent(p.node); err != nil {
			return fmt.Errorf("show the agent of %s: %w", p.node, err)
		}
		return f()
	})
}
