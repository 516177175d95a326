package bench

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
	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/inject"
	"sluice.dev/sluice/internal/bench/testbed"
	"sluice.dev/sluice/internal/netns"
)

// site is where an agent process works: a folder with its manifests and its socket.
type site struct {
	binary string
	dir    string
	node   *netns.NS
	group  *memoryGroup // nil: not accounted for
	from   string       // folder of the manifests that the agent reads; its own where empty
	flags  []string     // of the agent, beside those that it always has
}

// workDir is where folders for agents are made: in memory where there is a
// place for that, for a disk's file system would be measured along with the agent. (ext4 writes a
// file's data out when it is renamed over another: half a millisecond here.)
func workDir() string {
	const shm = "/dev/shm"
	var s unix.Statfs_t
	if unix.Statfs(shm, &s) == nil && s.Type == unix.TMPFS_MAGIC {
		return shm
	}
	return os.TempDir()
}

// newSite makes the folder; the manifests go into manifests().
func (r *run) newSite(node *netns.NS) (*site, error) {
	dir, err := os.MkdirTemp(workDir(), r.prefix+"-*")
	if err != nil {
		return nil, fmt.Errorf("make folder for an agent: %w", err)
	}
	s := &site{binary: r.Binary, dir: dir, node: node}
	if err := errors.Join(os.Mkdir(s.manifests(), 0o755), os.Mkdir(s.next(), 0o755)); err != nil {
		return nil, errors.Join(fmt.Errorf("make folder for an agent: %w", err), s.Close())
	}
	return s, nil
}

// Close removes the folder.
func (s *site) Close() error { return os.RemoveAll(s.dir) }

func (s *site) manifests() string { return filepath.Join(s.dir, "manifests") }

// next is where new files are written, before they are renamed into place.
func (s *site) next() string       { return filepath.Join(s.dir, "next") }
func (s *site) socket() string     { return filepath.Join(s.dir, "agent.sock") }
func (s *site) ask() *agent.Client { return agent.NewClient(s.socket()) }

// fill writes manifests.
func (s *site) fill(files iter.Seq[cluster.File]) error {
	for f := range files {
		if err := os.WriteFile(filepath.Join(s.manifests(), f.Name), f.JSON, 0o644); err != nil {
			return fmt.Errorf("write manifests: %w", err)
		}
	}
	return nil
}

// fillLists writes the cluster as Lists of a thousand services each.
func (s *site) fillLists(c cluster.Cluster) error {
	node := cluster.NodeFile()
	if err := os.WriteFile(filepath.Join(s.manifests(), node.Name), node.JSON, 0o644); err != nil {
		return fmt.Errorf("write manifests: %w", err)
	}
	const size = 1_000
	for from := 0; from < c.Services; from += size {
		var b bytes.Buffer
		if err := c.WriteList(&b, from, min(from+size, c.Services)); err != nil {
			return fmt.Errorf("write manifests: %w", err)
		}
		path := filepath.Join(s.manifests(), fmt.Sprintf("list-%06d.json", from))
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			return fmt.Errorf("write manifests: %w", err)
		}
	}
	return nil
}

// stageFile writes a file next to the manifests; place renames it into them.
func (s *site) stageFile(f cluster.File) error {
	return os.WriteFile(filepath.Join(s.next(), f.Name), f.JSON, 0o644)
}

func (s *site) place(f cluster.File) error {
	return os.Rename(filepath.Join(s.next(), f.Name), filepath.Join(s.manifests(), f.Name))
}

// process is a running agent.
type agentProcess struct {
	*site
	cmd     *exec.Cmd
	log     *tail
	started time.Time
	ended   chan struct{} // closed once it has ended
}

// objects are the flags that say what is to be programmed.
func (s *site) objects() []string {
	return []string{"--manifests", cmp.Or(s.from, s.manifests()), "--node", cluster.Node,
		"--cluster-cidr", inject.Sources.String(), "--service-cidr", cluster.Services.String()}
}

// start runs `sluice run` on the site.
func (s *site) start() (*agentProcess, error) {
	args := append([]string{"run", "--socket", s.socket(), "--log-level", "warn"}, append(s.objects(), s.flags...)...)
	cmd := exec.Command(s.binary, args...)
	if s.group != nil { // the shell joins the group before the agent allocates anything
		cmd = exec.Command("/bin/sh", append([]string{"-c", `echo $$ >"$0" && exec "$@"`, s.group.procs(), s.binary}, args...)...)
	}
	p := &agentProcess{site: s, cmd: cmd, log: &tail{}, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is ours to handle
	p.started = time.Now()
	if err := s.node.Start(cmd); err != nil {
		return nil, fmt.Errorf("start agent: %w", err)
	}
	go func() {
		_ = cmd.Wait() // how it ended shows in what follows
		close(p.ended)
	}()
	return p, nil
}

func (p *agentProcess) pid() int { return p.cmd.Process.Pid }

// kill ends the agent at once, as a crash would, and waits until it has.
func (p *agentProcess) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// readyURL answers 200 once the kernel has had all that the manifests held at
// the start; each agent has a loopback of its own.
const readyURL = "http://127.0.0.1:10256/readyz"

// ready waits for that, and returns how long it took from the start of the process.
func (p *agentProcess) ready(ctx context.Context, within time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	client := testbed.HTTP(p.node)
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, readyURL, nil)
		if err != nil {
			return 0, fmt.Errorf("ask agent whether it is ready: %w", err)
		}
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return time.Since(p.started), nil
			}
		}
		select {
		case <-p.ended:
			return 0, fmt.Errorf("agent ended: %s", p.log)
		case <-ctx.Done():
			return 0, fmt.Errorf("agent is not ready after %s: %s", time.Since(p.started).Round(time.Millisecond), p.log)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// tail keeps the last few kilobytes written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailSize = 4096

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	t.b = t.b[max(0, len(t.b)-tailSize):]
	return len(b), nil
}

// String returns what was kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
