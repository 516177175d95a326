package health

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// execute is a check by a command. The command leads a process group of its own, of which nothing
// is left when the check has ended.
func execute(ctx context.Context, p *probe) outcome {
	var output head
	c := exec.CommandContext(ctx, p.Command[0], p.Command[1:]...)
	c.Stdout, c.Stderr = &output, &output
	c.Env = []string{
		"PATH=" + os.Getenv("PATH"),
		"SLUICE_FARM=" + p.Farm,
		"SLUICE_BACKEND=" + p.Backend,
		"SLUICE_ADDRESS=" + p.at.Addr().String(),
		"SLUICE_PORT=" + strconv.Itoa(int(p.at.Port())),
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	kill := func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.Cancel = kill
	c.WaitDelay = 100 * time.Millisecond // for the output of processes that have left the group
	if err := c.Start(); err != nil {
		return failed(err)
	}
	err := c.Wait()
	_ = kill() // what the command has left in the background; it is an error if there is nothing
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return down(silence(p.Timeout))
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return up(said("exit status 0", output))
	case errors.As(err, &exit):
		return down(said(exit.String(), output))
	}
	return outcome{err: err}
}

// said adds the first line of a command's output to how it ended.
func said(how string, output head) string {
	if first := line(string(output)); first != "" {
		return how + ": " + first
	}
	return how
}

// head is the beginning of what is written to it.
type head []byte

// Write implements io.Writer.
func (h *head) Write(b []byte) (int, error) {
	*h = append(*h, b[:min(len(b), 4*maxReason-len(*h))]...)
	return len(b), nil
}
