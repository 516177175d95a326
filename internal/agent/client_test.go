package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// If the agent is stopped, the client names its process and says what to do, rather than wait.
func TestStoppedAgentIsNamed(t *testing.T) {
	const env = "SLUICE_TEST_SOCKET"
	if path := os.Getenv(env); path != "" { // the stopped process
		l, err := Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // it is killed before
		_ = l.Close()           // what nobody refers to would be closed at any time
		return
	}
	socket := filepath.Join(t.TempDir(), "s.sock")
	silent := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0], "-test.run=^TestStoppedAgentIsNamed$")
		cmd.Env = append(os.Environ(), env+"="+socket)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		eventually(t, "it listens", func() bool { return Alive(socket) })
		return cmd
	}()
	client := NewClient(socket)
	client.patience = 100 * time.Millisecond
	expect := func(say string) {
		t.Helper()
		soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, status := client.Status(t.Context())
		_, plan := client.Plan(t.Context())
		for what, err := range map[string]error{
			"status": status, "plan": plan, "sync": client.Sync(soon),
			"drops": client.Drops(t.Context(), nil, func(DropReport) error { return nil }),
		} {
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(fmt.Sprint(err), fmt.Sprintf("process %d ", silent.Process.Pid)) || !strings.Contains(err.Error(), say) {
				t.Errorf("%s: %v, want %q", what, err, say)
			}
		}
	}
	expect("does not answer")
	if err := silent.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is stopped", func() bool { return stopped(int32(silent.Process.Pid)) })
	expect("kill -CONT")
	client.patience = time.Hour // which is not waited for
	if _, err := client.Plan(t.Context()); err == nil || !strings.Contains(err.Error(), "kill -CONT") {
		t.Errorf("plan of a patient client: %v", err)
	}
}

// Where nothing answers, the error names what would.
func TestNoAgentAnswers(t *testing.T) {
	c := NewClient(filepath.Join(t.TempDir(), "none.sock"))
	_, farms := c.Farms(t.Context())
	_, status := c.Status(t.Context())
	_, services := c.Services(t.Context())
	for _, test := range []struct {
		err          error
		run, balance bool
	}{{farms, false, true}, {status, true, true}, {services, true, false}} {
		text := fmt.Sprint(test.err)
		if !errors.Is(test.err, ErrNoAgent) || strings.Contains(text, "'sluice run'") != test.run || strings.Contains(text, "'sluice balance'") != test.balance {
			t.Error(text)
		}
	}
}
