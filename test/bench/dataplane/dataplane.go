// Package dataplane runs the programs that carry out services for a node, Sluice's agent and
// kube-proxy, as real processes that read a real API.
package dataplane

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/test/bench/testbed"
)

// Process is a program that runs on a testbed's node. Its methods are not safe for concurrent use.
type Process struct {
	Program
	*testbed.Testbed

	dir, kubeconfig string
	cmd             *exec.Cmd
	log             *log
	started         time.Time
	ended           chan struct{} // closed once the process has ended
}

// New prepares a process; Start starts it. Its files are in dir, and the kubeconfig says who it is
// to the API.
func New(p Program, l *testbed.Testbed, dir, kubeconfig string) *Process {
	return &Process{Program: p, Testbed: l, dir: dir, kubeconfig: kubeconfig}
}

// Start starts the program.
func (s *Process) Start() error {
	cmd, err := s.command(s.dir, s.kubeconfig)
	if err != nil {
		return err
	}
	s.cmd, s.log, s.ended = cmd, newLog(s.synced), make(chan struct{})
	cmd.Stdout, cmd.Stderr = s.log, s.log
	// Nodes do not share the lock of xtables, which one would hold for as long as it is paused.
	cmd.Env = append(cmd.Environ(), "XTABLES_LOCKFILE="+filepath.Join(s.dir, "xtables.lock"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is ours to handle
	s.started = time.Now()
	if err := s.Node.Start(cmd); err != nil {
		s.cmd = nil
		return fmt.Errorf("start %s: %w", s.Name, err)
	}
	ended := s.ended
	go func() {
		_ = cmd.Wait() // Running reports that it has ended
		close(ended)
	}()
	return nil
}

// Started returns when the program was last started.
func (s *Process) Started() time.Time { return s.started }

// Synced returns when the program logged that it had read all of its sources; false: it has not
// yet.
func (s *Process) Synced() (time.Time, bool) { return s.log.at() }

// Running returns an error with the end of the program's log if it has ended.
func (s *Process) Running() error {
	select {
	case <-s.ended:
		return fmt.Errorf("%s has ended: %s", s.Name, s.log)
	default:
		return nil
	}
}

// Log returns the end of what the program has logged.
func (s *Process) Log() string { return s.log.String() }

// WhileRunning returns a context that ends with the program, too.
func (s *Process) WhileRunning(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	ended := s.ended
	go func() {
		select {
		case <-ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// Kill ends the program and its children at once, as a crash would, and returns when it has ended.
// It does nothing if the program has not been started.
func (s *Process) Kill() {
	if s.cmd == nil {
		return
	}
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // it may have ended
	<-s.ended
	s.cmd = nil
}

// Pause stops the program and its children (SIGSTOP); Resume continues them.
func (s *Process) Pause() error { return s.signal(syscall.SIGSTOP) }

// Resume undoes Pause.
func (s *Process) Resume() error { return s.signal(syscall.SIGCONT) }

func (s *Process) signal(sig syscall.Signal) error {
	if s.cmd == nil {
		return fmt.Errorf("signal %s: it does not run", s.Name)
	}
	if err := syscall.Kill(-s.cmd.Process.Pid, sig); err != nil {
		return errors.Join(fmt.Errorf("signal %s: %w", s.Name, err), s.Running())
	}
	return nil
}

// Ask returns a client of Sluice's agent.
func (s *Process) Ask() *agent.Client { return agent.NewClient(socketIn(s.dir)) }

// Close ends the program and removes the testbed.
func (s *Process) Close() error {
	s.Kill()
	return s.Testbed.Close()
}
