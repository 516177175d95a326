// Package node runs a Kubernetes node as users have it, the kubelet and containerd, in namespaces
// of its own: network, mount, PID, UTS, IPC and cgroup. The node sees the machine's programs,
// read-only in effect: what it writes is in memory, or on a disk of its own that outlives it.
// Nothing of the machine is changed, and one signal ends the node with all its pods.
//
// A node consists of two processes of the lab's own program. Run is the outer one, which whoever
// starts the node knows; it makes the cgroup, and starts Inside, the first process of the node's
// namespaces, which makes the node's file system and runs containerd and the kubelet.
package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/lab/process"
)

// Config describes a node. Paths are the machine's, unless they are said to be the node's.
type Config struct {
	Name string
	// Group is the name of the node's cgroup; Save makes one that no other node of the machine has.
	Group string
	// Dir is for the record of the node, and the logs of its programs. It is gone with the lab.
	Dir string
	// Disk is what the node keeps when it is switched off: images, containers, the pods' volumes,
	// the CNI plugins and their configuration. It must be on a file system on which overlayfs can
	// write, and in a folder that exists.
	Disk string
	// Bin is the folder that contains the kubelet. "": the node has none, and ends once it has
	// imported its archives.
	Bin string
	// Containerd is the folder that contains containerd and its shim; "": they are in PATH.
	Containerd string
	Addrs      []netip.Addr
	Kubeconfig string // the kubelet's, with its certificates in it
	Authority  string // that signs the API server's client certificate, PEM
	ClusterDNS []netip.Addr
	Nameserver netip.Addr // of the node itself, and so of what the cluster's DNS does not know
	// Plugins are CNI plugins, which the node has at /opt/cni/bin.
	Plugins []string
	// Network is a CNI configuration, a conflist, which the node has from its start; "" if an agent
	// brings it.
	Network string
	// Base is a disk whose images a new node begins with, as from Disk; "" for none.
	Base string
	// Archives are OCI image archives, each of which the node imports once.
	Archives []string
	// Registry is the URL of a registry that is asked for the images of all others; "" for none.
	Registry string
	// SSHKey is the public key of who may run commands on the node by SSH, at its port 22, as from
	// SSHKey; "": nobody.
	SSHKey string
	// Folders are folders of the machine, writable, by the paths that the node has them at.
	Folders map[string]string
}

// keptFolders are what a node keeps on its disk, by the node's paths.
var keptFolders = []string{
	"/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/var/log/pods", "/var/log/containers", "/etc/cni/net.d", "/opt/cni/bin",
}

// File is the name of what Save writes, in the node's Dir.
const File = "node.json"

// Save writes the configuration, for Load in the node's processes, and returns the file's path.
func (c *Config) Save() (path string, err error) {
	path = filepath.Join(c.Dir, File)
	c.Group = newGroup(c.Name)
	data, err := json.Marshal(c)
	if err == nil {
		err = os.MkdirAll(c.Dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(path, data, 0o600) // it contains a key
	}
	if err != nil {
		return "", fmt.Errorf("configure node %s: %w", c.Name, err)
	}
	return path, nil
}

// Load reads what Save has written.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the node's configuration: %w", err)
	}
	c := &Config{}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return c, nil
}

// Init is the first process of the node, as seen from outside; the zero value if the node does
// not run.
func Init(dir string) process.Process { return process.Find(dir, initName) }

// Program is a program that the node's first process runs: kubelet or containerd; the zero value if
// it does not run now.
func Program(dir, name string) process.Process {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", Init(dir).PID)) // the pattern is well-formed
	for _, file := range files {
		children, _ := os.ReadFile(file) // a thread that has ended has none
		for pid := range strings.FieldsSeq(string(children)) {
			is, err := os.ReadFile(filepath.Join("/proc", pid, "comm"))
			if number, _ := strconv.Atoi(pid); err == nil && strings.TrimSpace(string(is)) == name {
				return process.Of(number)
			}
		}
	}
	return process.Process{}
}

// initName is the name of its record.
const initName = "init"

// Run runs the node in the calling process's network namespace, by the given command, which calls
// Inside. It returns when the node has ended; the node ends with this process. A node that has no
// kubelet ends by itself.
func Run(c *Config, command ...string) error {
	runtime.LockOSThread() // the node's first process ends with the thread that starts it
	defer runtime.UnlockOSThread()
	release, err := HoldDisks(filepath.Dir(c.Disk))
	if err != nil {
		return fmt.Errorf("start node %s: %w", c.Name, err)
	}
	defer func() { _ = release() }() // which only read
	if c.Base != "" {
		if err := c.clone(c.Base); err != nil {
			return fmt.Errorf("start node %s: %w", c.Name, err)
		}
	}
	g := group(c.Group)
	if err := g.make(); err != nil {
		return fmt.Errorf("make the cgroup of node %s: %w", c.Name, err)
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWCGROUP,
		Pdeathsig:  unix.SIGKILL, Setsid: true,
	}
	// The new cgroup namespace has the cgroup as its root that its first process is in. This
	// process goes back, so that the cgroup is empty when the node has ended.
	if err := g.within(cmd.Start); err != nil {
		return errors.Join(fmt.Errorf("start node %s: %w", c.Name, err), g.remove())
	}
	if err := process.Record(c.Dir, initName, cmd.Process.Pid); err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait(), g.remove())
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, unix.SIGTERM, unix.SIGINT)
	go func() {
		<-end
		_ = cmd.Process.Kill() // it may have ended
	}()
	err = cmd.Wait()
	return errors.Join(err, g.remove())
}

// Kill ends a node, if it runs, as a power cut would, and returns once nothing of it is left but
// its disk. dir is its Config's Dir.
func Kill(dir string) error {
	c, err := Load(filepath.Join(dir, File))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it has never been
	}
	if err == nil {
		err = Init(dir).Kill()
	}
	if err == nil {
		err = errors.Join(process.Forget(dir, initName), group(c.Group).remove())
	}
	if err != nil {
		return fmt.Errorf("end the node of %s: %w", dir, err)
	}
	return nil
}

// Path is where a file of the node is for processes outside; the node must run.
func Path(dir, file string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", Init(dir).PID), file)
}

// Check reports what the machine lacks for a node.
func Check(containerd string) error {
	var missing []string
	for _, program := range []string{"runc", filepath.Join(containerd, "containerd"), filepath.Join(containerd, "containerd-shim-runc-v2")} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, filepath.Base(program))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("nodes need %s, which this machine lacks; on Debian: apt-get install containerd", strings.Join(missing, ", "))
	}
	kinds, err := os.ReadFile("/proc/filesystems")
	if err == nil && !strings.Contains(string(kinds), "\toverlay\n") {
		return errors.New("nodes need overlayfs, which this kernel lacks; it may be a module: modprobe overlay")
	}
	return err
}

// until calls f until it is true, and returns false if it does not become so in time.
func until(d time.Duration, f func() bool) bool {
	for end := time.Now().Add(d); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}
