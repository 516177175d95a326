package deploy_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/test/netns"
)

// containerEnv holds a box in JSON, if this program is to become the process in it.
const containerEnv = "SLUICE_TEST_CONTAINER"

// box is what a container runtime makes of a container on the host's network: an image with only
// the program in it, its own /proc with read-only sysctls, the volumes, and the capabilities that
// the pod asks for.
type box struct {
	Root         string            // an empty folder
	Binary       string            // its folder becomes /usr/local/bin
	Binds        map[string]string // folders of the host, by mount point
	Capabilities []string
	Privileged   bool
	Env, Args    []string
}

// accountFolder is where a pod finds the credentials of its service account.
const accountFolder = "/var/run/secrets/kubernetes.io/serviceaccount"

// newBox translates a pod as the kubelet does. Volumes are folders of the host, by the volumes'
// names.
func newBox(t *testing.T, pod *corev1.PodSpec, node, binary string, volumes map[string]string) *box {
	t.Helper()
	c := &pod.Containers[0]
	b := &box{Root: t.TempDir(), Binary: binary, Binds: map[string]string{}}
	env := map[string]string{}
	for _, e := range c.Env {
		if e.ValueFrom != nil && e.ValueFrom.FieldRef.FieldPath == "spec.nodeName" {
			e.Value = node
		}
		env[e.Name] = e.Value
		b.Env = append(b.Env, e.Name+"="+e.Value)
	}
	for _, a := range c.Args {
		b.Args = append(b.Args, os.Expand(strings.NewReplacer("$(", "${", ")", "}").Replace(a), func(name string) string { return env[name] }))
	}
	volumes = maps.Clone(volumes)
	volumes["bpf"] = "/sys/fs/bpf" // each node has its own pins there
	for _, m := range c.VolumeMounts {
		if volumes[m.Name] == "" {
			t.Fatalf("nothing to mount as volume %s", m.Name)
		}
		b.Binds[m.MountPath] = volumes[m.Name]
	}
	b.Binds[accountFolder] = volumes["token"]
	s := c.SecurityContext
	b.Privileged = s.Privileged != nil && *s.Privileged
	if !b.Privileged {
		for _, name := range s.Capabilities.Add {
			b.Capabilities = append(b.Capabilities, string(name))
		}
	}
	return b
}

// command returns a command that becomes the box's process when it is started.
func (b *box) command(t *testing.T) *exec.Cmd {
	t.Helper()
	spec, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{containerEnv + "=" + string(spec)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID}
	return cmd
}

// start runs the box in a network namespace until the test ends. Its output goes to a file.
func (b *box) start(t *testing.T, ns *netns.NS) (log string) {
	t.Helper()
	log, _ = b.begin(t, ns)
	return log
}

// begin is start, and returns what ends the box before the test does: without an error, except for
// an agent that could never read the API.
func (b *box) begin(t *testing.T, ns *netns.NS) (log string, end func()) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := b.command(t)
	cmd.Stdout, cmd.Stderr = file, file
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		if err := stop(cmd); err != nil {
			if said, _ := os.ReadFile(file.Name()); !strings.Contains(string(said), "could never be read") {
				t.Error(err)
			}
		}
	})
	t.Cleanup(func() {
		end()
		if err := file.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			text, err := os.ReadFile(file.Name())
			t.Logf("the container's log: %v\n%s", err, text)
		}
	})
	return file.Name(), end
}

// run runs the box in a network namespace until it ends.
func (b *box) run(t *testing.T, ns *netns.NS) (out string, err error) {
	t.Helper()
	doErr := ns.Do(func() error {
		var all []byte
		all, err = b.command(t).CombinedOutput()
		out = string(all)
		return nil
	})
	if doErr != nil {
		t.Fatal(doErr)
	}
	return out, err
}

// stop ends a process as the kubelet does, within the grace period.
func stop(cmd *exec.Cmd) error {
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case err := <-done:
		return err
	case <-time.After(10 * time.Second):
		return errors.Join(errors.New("it did not end within 10 s"), cmd.Process.Kill(), <-done)
	}
}

// contain makes this process that of a box. It returns only on failure.
func contain(spec string) error {
	runtime.LockOSThread()
	var b box
	if err := json.Unmarshal([]byte(spec), &b); err != nil {
		return err
	}
	if err := b.mount(); err != nil {
		return err
	}
	if err := errors.Join(unix.Chroot(b.Root), os.Chdir("/")); err != nil {
		return err
	}
	if !b.Privileged {
		if err := confine(b.Capabilities); err != nil {
			return err
		}
	}
	const program = "/usr/local/bin/sluice"
	return unix.Exec(program, append([]string{program}, b.Args...), b.Env)
}

func (b *box) mount() error {
	in := func(path string) string { return filepath.Join(b.Root, path) }
	steps := []func() error{
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return unix.Mount("tmpfs", b.Root, "tmpfs", 0, "") },
		func() error { return os.MkdirAll(in("/proc"), 0o755) },
		func() error { return unix.Mount("proc", in("/proc"), "proc", 0, "") },
		func() error { return os.MkdirAll(in("/usr/local/bin"), 0o755) },
		func() error { return os.MkdirAll(in("/etc"), 0o755) },
		// The kubelet gives pods on the host's network a copy of the host's.
		func() error { return os.WriteFile(in("/etc/hosts"), []byte("127.0.0.1 localhost\n"), 0o644) },
		func() error { return unix.Mount(filepath.Dir(b.Binary), in("/usr/local/bin"), "", unix.MS_BIND, "") },
	}
	for at, from := range b.Binds {
		steps = append(steps,
			func() error { return os.MkdirAll(in(at), 0o755) },
			func() error { return unix.Mount(from, in(at), "", unix.MS_BIND, "") })
	}
	if !b.Privileged {
		steps = append(steps,
			func() error { return unix.Mount(in("/proc/sys"), in("/proc/sys"), "", unix.MS_BIND, "") },
			func() error {
				return unix.Mount("", in("/proc/sys"), "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
			})
	}
	steps = append(steps, func() error { return unix.Mount("", b.Root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "") })
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("mount, step %d: %w", i, err)
		}
	}
	return nil
}

// confine limits this thread, and what it executes, to these capabilities.
func confine(names []string) error {
	known := map[string]uintptr{"NET_ADMIN": unix.CAP_NET_ADMIN}
	var keep []uintptr
	for _, name := range names {
		c, ok := known[name]
		if !ok {
			return fmt.Errorf("capability %s is not known here", name)
		}
		keep = append(keep, c)
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if slices.Contains(keep, c) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}
