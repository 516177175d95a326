package node

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/lib/replace"
	"sluice.dev/sluice/internal/model"
)

// Inside is the node's first process. It returns only if the node cannot run, or has no kubelet and
// is done.
func Inside(c *Config) error {
	if os.Getpid() != 1 {
		return errors.New("run a node: it is the first process of a PID namespace, which Run makes")
	}
	logs := map[string]*os.File{} // opened before the machine's files are out of sight
	for _, name := range []string{containerdName, kubeletName} {
		f, err := os.OpenFile(filepath.Join(c.Dir, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		if err != nil {
			return fmt.Errorf("start node %s: %w", c.Name, err)
		}
		logs[name] = f
	}
	if err := c.enterRoot(); err != nil {
		return fmt.Errorf("make the file system of node %s: %w", c.Name, err)
	}
	if err := unix.Sethostname([]byte(c.Name)); err != nil {
		return fmt.Errorf("name node %s: %w", c.Name, err)
	}
	if err := c.configure(); err != nil {
		return fmt.Errorf("configure node %s: %w", c.Name, err)
	}
	s := newSupervisor()
	if c.SSHKey != "" {
		if err := c.listenSSH(s); err != nil {
			return fmt.Errorf("listen for SSH on node %s: %w", c.Name, err)
		}
	}
	s.keep(logs[containerdName], c.containerdCommand())
	if !until(time.Minute, func() bool { _, err := os.Stat(containerdSocket); return err == nil }) {
		return fmt.Errorf("start node %s: containerd does not answer; see containerd.log", c.Name)
	}
	if err := c.importArchives(s, logs[containerdName]); err != nil {
		return err
	}
	if c.Bin == "" {
		return nil
	}
	s.keep(logs[kubeletName], c.kubeletCommand())
	select {} // until somebody kills this process
}

const containerdName, kubeletName = "containerd", "kubelet"

// Where the node has what its configuration names, by the node's paths.
const (
	kubernetesBin    = "/usr/local/lib/kubernetes"
	containerdBin    = "/usr/local/lib/containerd"
	pluginsDir       = "/usr/local/lib/cni"
	archivesDir      = "/usr/local/share/images"
	commandsDir      = "/usr/local/bin"
	containerdSocket = "/run/containerd/containerd.sock"
)

// enterRoot makes the node's file system, and makes it the root of this process. Below it are the
// machine's files; what is written to them is in memory.
func (c *Config) enterRoot() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("separate mounts: %w", err)
	}
	memory := filepath.Join(c.Disk, "memory")
	root, upper, work := filepath.Join(memory, "root"), filepath.Join(memory, "upper"), filepath.Join(memory, "work")
	if err := os.MkdirAll(memory, 0o755); err != nil {
		return err
	}
	if err := mount("tmpfs", memory, "tmpfs", "mode=755"); err != nil {
		return err
	}
	for _, dir := range []string{root, upper, work} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := mount("overlay", root, "overlay", "lowerdir=/,upperdir="+upper+",workdir="+work); err != nil {
		return err
	}
	in := func(path string) string { return filepath.Join(root, path) }
	for _, m := range []struct{ kind, at, options string }{
		{"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"bpf", "/sys/fs/bpf", ""}, {"tmpfs", "/run", "mode=755"}, {"tmpfs", "/tmp", "mode=1777"}, {"tmpfs", "/var/log", "mode=755"},
	} {
		if err := mount(m.kind, in(m.at), m.kind, m.options); err != nil {
			return err
		}
	}
	if err := mountCgroups(in(cgroupDir)); err != nil {
		return err
	}
	if err := bind("/dev", in("/dev")); err != nil {
		return err
	}
	folders := map[string]string{}
	maps.Copy(folders, c.Folders)
	for _, kept := range keptFolders {
		folders[kept] = filepath.Join(c.Disk, kept)
	}
	for at, from := range map[string]string{kubernetesBin: c.Bin, containerdBin: c.Containerd} {
		if from != "" {
			folders[at] = from
		}
	}
	for i, archive := range c.Archives {
		folders[fmt.Sprintf("%s/%d", archivesDir, i)] = filepath.Dir(archive)
	}
	for i, plugin := range c.Plugins {
		folders[fmt.Sprintf("%s/%d", pluginsDir, i)] = filepath.Dir(plugin)
	}
	for _, at := range slices.Sorted(maps.Keys(folders)) { // a folder before what is in it
		if err := os.MkdirAll(folders[at], 0o755); err != nil {
			return err
		}
		if err := bind(folders[at], in(at)); err != nil {
			return err
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the machine's root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	// The kubelet and the runtime share the mounts of volumes.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts: %w", err)
	}
	return nil
}

func mount(source, at, kind, options string) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, at, kind, 0, options); err != nil {
		return fmt.Errorf("mount %s at %s: %w", kind, at, err)
	}
	return nil
}

func bind(from, at string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(at, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(at), 0o755); err == nil {
		err = os.WriteFile(at, nil, 0o644)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(from, at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", from, at, err)
	}
	return nil
}

// configure writes what the node's programs read.
func (c *Config) configure() error {
	files := map[string]string{
		"/etc/hostname":                      c.Name + "\n",
		"/etc/hosts":                         c.hosts(),
		"/etc/containerd/config.toml":        c.containerdConfig(),
		"/etc/kubernetes/kubelet.yaml":       c.kubeletConfig(),
		"/etc/kubernetes/kubelet.kubeconfig": c.Kubeconfig,
		"/etc/kubernetes/ca.crt":             c.Authority,
	}
	if c.Nameserver.IsValid() {
		files["/etc/resolv.conf"] = fmt.Sprintf("nameserver %s\n", c.Nameserver)
	}
	if c.Registry != "" {
		files[registriesDir+"/_default/hosts.toml"] = c.registries()
	}
	if c.Network != "" {
		files["/etc/cni/net.d/10-lab.conflist"] = c.Network
	}
	for path, text := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // it may be a link
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	for i, plugin := range c.Plugins {
		// A copy, as agents in containers look at this folder alone.
		name := filepath.Base(plugin)
		data, err := os.ReadFile(fmt.Sprintf("%s/%d/%s", pluginsDir, i, name))
		if err == nil {
			err = replace.File(filepath.Join("/opt/cni/bin", name), data, 0o755)
		}
		if err != nil {
			return err
		}
	}
	return hideParameters()
}

func (c *Config) hosts() string {
	text := "127.0.0.1 localhost\n::1 localhost\n"
	for _, a := range c.Addrs {
		text += fmt.Sprintf("%s %s\n", a, c.Name)
	}
	return text
}

// hideParameters has the node see the values that the kubelet wants of those kernel parameters that
// are the whole machine's, so that it does not set them.
func hideParameters() error {
	for name, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		file := filepath.Join("/run/kernel", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		at := filepath.Join("/proc/sys", name)
		if err := unix.Mount(file, at, "", unix.MS_BIND, ""); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("cover %s: %w", at, err)
		}
	}
	return nil
}

// environ is that of the node's programs.
func environ() []string {
	return []string{"PATH=" + strings.Join([]string{containerdBin, kubernetesBin, "/usr/local/sbin", commandsDir, "/usr/sbin", "/usr/bin", "/sbin", "/bin"}, ":"), "HOME=/root"}
}

func (c *Config) command(name string, args ...string) []string {
	for _, dir := range []string{containerdBin, kubernetesBin} {
		if path := filepath.Join(dir, name); unix.Access(path, unix.X_OK) == nil {
			return append([]string{path}, args...)
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		path = name // starting it says what is wrong
	}
	return append([]string{path}, args...)
}

func (c *Config) containerdCommand() []string {
	return c.command(containerdName, "--config", "/etc/containerd/config.toml")
}

func (c *Config) kubeletCommand() []string {
	return c.command(kubeletName, "--config", "/etc/kubernetes/kubelet.yaml", "--kubeconfig", "/etc/kubernetes/kubelet.kubeconfig",
		"--hostname-override", c.Name, "--node-ip", model.Join(c.Addrs, ","))
}

// importArchives imports each archive that the node's disk does not have yet.
func (c *Config) importArchives(s *supervisor, log *os.File) error {
	for i, archive := range c.Archives {
		mark := filepath.Join("/var/lib/containerd", "imported-"+filepath.Base(filepath.Dir(archive))+"-"+filepath.Base(archive))
		if _, err := os.Stat(mark); err == nil {
			continue
		}
		code, err := s.run(log, c.command("ctr", "--namespace", "k8s.io", "images", "import", fmt.Sprintf("%s/%d/%s", archivesDir, i, filepath.Base(archive))))
		if err == nil && code != 0 {
			err = fmt.Errorf("ctr ended with status %d; see containerd.log", code)
		}
		if err == nil {
			err = os.WriteFile(mark, nil, 0o644)
		}
		if err != nil {
			return fmt.Errorf("import %s into node %s: %w", archive, c.Name, err)
		}
	}
	return nil
}

// supervisor starts programs, and waits for them and for all orphans of the node, as the first
// process of a PID namespace must.
type supervisor struct {
	mu    sync.Mutex
	ended map[int]chan int // by process: for its exit status
}

func newSupervisor() *supervisor {
	s := &supervisor{ended: map[int]chan int{}}
	go s.reap()
	return s
}

func (s *supervisor) reap() {
	for {
		var status unix.WaitStatus
		var info unix.Siginfo
		// First look, then reap: a process that has just been started is in the map once the lock
		// is free.
		if err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
			time.Sleep(10 * time.Millisecond) // there is no child now
			continue
		}
		s.mu.Lock()
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if err == nil && pid > 0 {
			if c := s.ended[pid]; c != nil {
				c <- status.ExitStatus()
				delete(s.ended, pid)
			}
		}
		s.mu.Unlock()
	}
}

// start starts a program; the channel gets its exit status, -1 if a signal ended it.
func (s *supervisor) start(out, errOut *os.File, args []string) (<-chan int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := os.StartProcess(args[0], args, &os.ProcAttr{
		Dir: "/", Env: environ(), Files: []*os.File{nil, out, errOut}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, err
	}
	c := make(chan int, 1)
	s.ended[p.Pid] = c
	return c, p.Release()
}

// run runs a program to its end.
func (s *supervisor) run(log *os.File, args []string) (int, error) {
	ended, err := s.start(log, log, args)
	if err != nil {
		return 0, err
	}
	return <-ended, nil
}

// restartDelay is the time between the end of a program and its next start, as systemd's units of
// Kubernetes have it.
const restartDelay = time.Second

// keep runs a program in the background, for as long as the node runs.
func (s *supervisor) keep(log *os.File, args []string) {
	go func() {
		for {
			status, err := s.run(log, args)
			_, _ = fmt.Fprintf(log, "node: %s ended with status %d (%v); it is started again\n", filepath.Base(args[0]), status, err) // nobody else would hear of it
			time.Sleep(restartDelay)
		}
	}()
}
