// Package seat runs the programs that carry out services for a node, as real processes that read a real API: Sluice's agent,
// and kube-proxy, whose seat it takes.
package seat

import (
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/bench/lane"
)

// Seat is a program on a lane's node. Its methods are not safe for concurrent use.
type Seat struct {
	Program
	*lane.Lane

	dir, kubeconfig string
	cmd             *exec.Cmd
	log             *log
	started         time.Time
	ended           chan struct{} // closed once the process has ended
}

// New prepares a seat; the program is started later. Its files are in dir, and it is whom the kubeconfig says.
func New(p Program, l *lane.Lane, dir, kubeconfig string) *Seat {
	return &Seat{Program: p, Lane: l, dir: dir, kubeconfig: kubeconfig}
}

// Start starts the program.
func (s *Seat) Start() error {
	cmd, err := s.command(s.dir, s.kubeconfig)
	if err != nil {
		return err
	}
	s.cmd, s.log, s.ended = cmd, newLog(s.synced), make(chan struct{})
	cmd.Stdout, cmd.Stderr = s.log, s.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is ours to handle
	s.started = time.Now()
	if err := s.Node.Start(cmd); err != nil {
		s.cmd = nil
		return fmt.Errorf("start %s: %w", s.Name, err)
	}
	ended := s.ended
	go func() {
		_ = cmd.Wait() // how it ended shows in what follows
		close(ended)
	}()
	return nil
}

// Started is when the program was started last.
func (s *Seat) Started() time.Time { return s.started }

// Synced is when the program said that it has read all of its sources; false: it has not yet.
func (s *Seat) Synced() (time.Time, bool) { return s.log.at() }

// Running returns an error, with the end of what it wrote, if the program has ended.
func (s *Seat) Running() error {
	select {
	case <-s.ended:
		return fmt.Errorf("%s has ended: %s", s.Name, s.log)
	default:
		return nil
	}
}

// Kill ends the program and its children at once, as a crash would, and returns once it is gone. It may not have been started.
func (s *Seat) Kill() {
	if s.cmd == nil {
		return
	}
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // it may have ended
	<-s.ended
	s.cmd = nil
}

// Pause stops the program and its children where they are, and Resume lets them go on.
func (s *Seat) Pause() error { return s.signal(syscall.SIGSTOP) }

// Resume undoes Pause.
func (s *Seat) Resume() error { return s.signal(syscall.SIGCONT) }

func (s *Seat) signal(sig syscall.Signal) error {
	if s.cmd == nil {
		return fmt.Errorf("signal %s: it does not run", s.Name)
	}
	if err := syscall.Kill(-s.cmd.Process.Pid, sig); err != nil {
		return errors.Join(fmt.Errorf("signal %s: %w", s.Name, err), s.Running())
	}
	return nil
}

// Ask talks to Sluice's agent.
func (s *Seat) Ask() *agent.Client { return agent.NewClient(socketIn(s.dir)) }

// Close ends the program and removes the lane.
func (s *Seat) Close() error {
	s.Kill()
	return s.Lane.Close()
}
