package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"sluice.dev/sluice/test/netns"
)

// script is a ruleset that is written to a file.
type script struct {
	f *os.File
	w *bufio.Writer
}

func newScript() (*script, error) {
	f, err := os.CreateTemp("", "sluice-bench-*.rules")
	if err != nil {
		return nil, fmt.Errorf("write rule set: %w", err)
	}
	return &script{f: f, w: bufio.NewWriterSize(f, 1<<20)}, nil
}

// add writes one line.
func (s *script) add(format string, args ...any) {
	fmt.Fprintf(s.w, format+"\n", args...)
}

// run feeds the script to a command's standard input inside the node and returns how long the
// command took. The script is used up.
func (s *script) run(ctx context.Context, node *netns.NS, command string, args ...string) (time.Duration, error) {
	defer func() { _ = errors.Join(s.f.Close(), os.Remove(s.f.Name())) }()
	if err := s.w.Flush(); err != nil {
		return 0, fmt.Errorf("write rule set: %w", err)
	}
	if _, err := s.f.Seek(0, io.SeekStart); err != nil {
		return 0, fmt.Errorf("read rule set: %w", err)
	}
	var took time.Duration
	err := node.Do(func() error {
		cmd := exec.CommandContext(ctx, command, args...)
		cmd.Stdin = s.f
		began := time.Now()
		out, err := cmd.CombinedOutput()
		took = time.Since(began)
		if err != nil {
			return fmt.Errorf("run %s: %w: %.400s", command, err, out)
		}
		return nil
	})
	return took, err
}
