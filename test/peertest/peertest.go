// Package peertest runs other BGP speakers, FRR and BIRD, in network namespaces, for tests and
// measurements beside them. What they write is in a folder of the caller's.
package peertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"sluice.dev/sluice/test/netns"
)

// startTimeout bounds how long a daemon may take to answer.
const startTimeout = 30 * time.Second

// daemon is a process in a namespace, which answers on a socket once it is ready.
type daemon struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
}

// start starts a program, and returns once the socket is there.
func start(ctx context.Context, ns *netns.NS, log, socket string, program string, args ...string) (*daemon, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	d := &daemon{cmd: exec.Command(program, args...), log: log, ended: make(chan struct{})}
	d.cmd.Stdout, d.cmd.Stderr = out, out
	if err := ns.Start(d.cmd); err != nil {
		return nil, fmt.Errorf("start %s in %s: %w", program, ns.Name, err)
	}
	go func() {
		_ = d.cmd.Wait()
		close(d.ended)
	}()
	if err := d.await(ctx, socket); err != nil {
		said, _ := os.ReadFile(log)
		return nil, errors.Join(fmt.Errorf("start %s in %s: %w: %s", program, ns.Name, err, said), d.kill())
	}
	return d, nil
}

func (d *daemon) await(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(socket); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-d.ended:
			return errors.New("it ended")
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", socket, ctx.Err())
		}
	}
}

// stop ends the process as an administrator does: it takes its leave of its peers.
func (d *daemon) stop() error { return d.end(syscall.SIGTERM) }

// kill ends the process as a crash does.
func (d *daemon) kill() error { return d.end(syscall.SIGKILL) }

func (d *daemon) end(how syscall.Signal) error {
	if err := d.cmd.Process.Signal(how); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-d.ended:
		return nil
	case <-time.After(startTimeout):
		return errors.Join(fmt.Errorf("%s does not end", d.cmd.Path), d.cmd.Process.Kill())
	}
}

// run runs a client of a daemon, and returns what it prints.
func run(program string, args ...string) (string, error) {
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %v: %w: %s", filepath.Base(program), args, err, out)
	}
	return string(out), nil
}

// write writes a configuration, for a daemon that may run as another user.
func write(path, text string) error { return os.WriteFile(path, []byte(text), 0o644) }
