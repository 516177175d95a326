package harness

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/bench/testbed"
	"sluice.dev/sluice/test/netns"
)

// WithSite runs f with a new site in a testbed of its own, and removes both.
func (r *Run) WithSite(ctx context.Context, f func(*Site) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	l, err := r.NewTestbed()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return r.WithSiteOn(l, f)
}

// WithSiteOn runs f with a new site on a testbed, and removes the site.
func (r *Run) WithSiteOn(l *testbed.Testbed, f func(*Site) error) (err error) {
	s, err := r.NewSite(l.Node)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if g, gerr := NewMemoryGroup(fmt.Sprintf("%s-%d", r.Prefix, r.Testbeds)); gerr != nil {
		r.Skip("kernel memory: %s", gerr)
	} else {
		s.Group = g
		defer func() { err = errors.Join(err, g.Close()) }()
	}
	return f(s)
}

// WithAgent runs f with an agent that has programmed the cluster, in a testbed of its own, and ends
// it.
func (r *Run) WithAgent(ctx context.Context, c cluster.Cluster, f func(*Agent) error) error {
	return r.WithSite(ctx, func(s *Site) error {
		if err := s.Fill(c.Files()); err != nil {
			return err
		}
		p, err := s.Start()
		if err != nil {
			return err
		}
		defer p.Kill()
		took, err := p.Ready(ctx, time.Minute)
		if err != nil {
			return err
		}
		r.Logf("agent holds %s, %s after its start", c, took.Round(time.Millisecond))
		return f(p)
	})
}

// Site is what an agent process works with: a folder for manifests and socket, and a network
// namespace.
type Site struct {
	Binary    string
	Dir       string
	Namespace *netns.NS
	Group     *MemoryGroup // nil: its memory is not accounted for
	From      string       // folder of the manifests that the agent reads; its own where empty
	Flags     []string     // more flags of the agent
}

// WorkDir is where folders for agents are made: a tmpfs if there is one. A disk's file system would
// be measured along with the agent (ext4 writes a file's data out when it is renamed over another,
// which takes half a millisecond here).
func WorkDir() string {
	const shm = "/dev/shm"
	var s unix.Statfs_t
	if unix.Statfs(shm, &s) == nil && s.Type == unix.TMPFS_MAGIC {
		return shm
	}
	return os.TempDir()
}

// LabProgram is the program of labs: this process's own, or the one that cli.Find finds.
func LabProgram() (string, error) {
	exe, err := os.Executable()
	if err == nil && filepath.Base(exe) != "sluice-lab" {
		exe, err = cli.Find("sluice-lab")
	}
	if err != nil {
		return "", fmt.Errorf("find the program of labs: %w", err)
	}
	return exe, nil
}

// NewSite makes a folder for an agent. Close it.
func (r *Run) NewSite(node *netns.NS) (*Site, error) {
	dir, err := os.MkdirTemp(WorkDir(), r.Prefix+"-*")
	if err != nil {
		return nil, fmt.Errorf("make folder for an agent: %w", err)
	}
	s := &Site{Binary: r.Binary, Dir: dir, Namespace: node}
	if err := errors.Join(os.Mkdir(s.Manifests(), 0o755), os.Mkdir(s.next(), 0o755)); err != nil {
		return nil, errors.Join(fmt.Errorf("make folder for an agent: %w", err), s.Close())
	}
	return s, nil
}

// Close removes the folder.
func (s *Site) Close() error { return os.RemoveAll(s.Dir) }

// Manifests is the folder of the manifests.
func (s *Site) Manifests() string { return filepath.Join(s.Dir, "manifests") }

// next is where new files are written, before they are renamed into place.
func (s *Site) next() string { return filepath.Join(s.Dir, "next") }

// Socket is the path of the agent's socket.
func (s *Site) Socket() string { return filepath.Join(s.Dir, "agent.sock") }

// AgentClient returns a client of the agent.
func (s *Site) AgentClient() *agent.Client { return agent.NewClient(s.Socket()) }

// Fill writes manifests.
func (s *Site) Fill(files iter.Seq[cluster.File]) error {
	for f := range files {
		if err := os.WriteFile(filepath.Join(s.Manifests(), f.Name), f.JSON, 0o644); err != nil {
			return fmt.Errorf("write manifests: %w", err)
		}
	}
	return nil
}

// FillLists writes the cluster as Lists of a thousand services each.
func (s *Site) FillLists(c cluster.Cluster) error {
	node := cluster.NodeFile()
	if err := os.WriteFile(filepath.Join(s.Manifests(), node.Name), node.JSON, 0o644); err != nil {
		return fmt.Errorf("write manifests: %w", err)
	}
	const size = 1_000
	for from := 0; from < c.Services; from += size {
		var b bytes.Buffer
		if err := c.WriteList(&b, from, min(from+size, c.Services)); err != nil {
			return fmt.Errorf("write manifests: %w", err)
		}
		path := filepath.Join(s.Manifests(), fmt.Sprintf("list-%06d.json", from))
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			return fmt.Errorf("write manifests: %w", err)
		}
	}
	return nil
}

// StageFile writes a file next to the manifests; Place renames it into them.
func (s *Site) StageFile(f cluster.File) error {
	return os.WriteFile(filepath.Join(s.next(), f.Name), f.JSON, 0o644)
}

// Place renames a staged file into the manifests: the agent sees one event.
func (s *Site) Place(f cluster.File) error {
	return os.Rename(filepath.Join(s.next(), f.Name), filepath.Join(s.Manifests(), f.Name))
}

// Agent is a running agent process.
type Agent struct {
	*Site
	cmd     *exec.Cmd
	Log     *logTail
	Started time.Time
	Ended   chan struct{} // closed once it has ended
}

// Objects are the flags that say what to program.
func (s *Site) Objects() []string {
	return []string{"--manifests", cmp.Or(s.From, s.Manifests()), "--node", cluster.Node,
		"--cluster-cidr", inject.Sources.String(), "--service-cidr", cluster.Services.String()}
}

// Start runs `sluice run` on the site.
func (s *Site) Start() (*Agent, error) {
	args := append([]string{"run", "--socket", s.Socket(), "--log-level", "warn"}, append(s.Objects(), s.Flags...)...)
	cmd := exec.Command(s.Binary, args...)
	if s.Group != nil { // the shell joins the group before the agent allocates anything
		cmd = exec.Command("/bin/sh", append([]string{"-c", `echo $$ >"$0" && exec "$@"`, s.Group.procs(), s.Binary}, args...)...)
	}
	p := &Agent{Site: s, cmd: cmd, Log: &logTail{}, Ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.Log, p.Log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is ours to handle
	p.Started = time.Now()
	if err := s.Namespace.Start(cmd); err != nil {
		return nil, fmt.Errorf("start agent: %w", err)
	}
	go func() {
		_ = cmd.Wait() // the caller notices that it has ended
		close(p.Ended)
	}()
	return p, nil
}

// Pid is its process ID.
func (p *Agent) Pid() int { return p.cmd.Process.Pid }

// Kill ends the agent at once, as a crash would, and waits until it has.
func (p *Agent) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.Ended
}

// readyURL answers 200 once all that the manifests held at the start is in the kernel. Each agent
// has a loopback of its own.
const readyURL = "http://127.0.0.1:10256/readyz"

// Ready waits until the agent is ready and returns the time since the start of its process.
func (p *Agent) Ready(ctx context.Context, within time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	client := testbed.HTTP(p.Namespace)
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, readyURL, nil)
		if err != nil {
			return 0, fmt.Errorf("ask agent whether it is ready: %w", err)
		}
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return time.Since(p.Started), nil
			}
		}
		select {
		case <-p.Ended:
			return 0, fmt.Errorf("agent ended: %s", p.Log)
		case <-ctx.Done():
			return 0, fmt.Errorf("agent is not ready after %s: %s", time.Since(p.Started).Round(time.Millisecond), p.Log)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// logTail keeps the last few kilobytes written to it.
type logTail struct {
	mu sync.Mutex
	b  []byte
}

const tailSize = 4096

// Write implements io.Writer.
func (t *logTail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	t.b = t.b[max(0, len(t.b)-tailSize):]
	return len(b), nil
}

// String returns what was kept.
func (t *logTail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
