package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"
)

// boot runs a machine until it powers itself off, copies its console to out, and returns
// nil if it reported that all went well.
func boot(ctx context.Context, image, initrd, accel, memory, params string, out io.Writer) error {
	begin := time.Now()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-accel", accel, "-cpu", "max", "-smp", "2", "-m", memory,
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio",
		"-kernel", image, "-initrd", initrd,
		"-append", "console=ttyS0 quiet panic=-1 "+params)
	console, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start QEMU: %w", err)
	}
	result := ""
	lines := bufio.NewScanner(console)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		if line == resultPass || line == resultFail {
			result = line
		}
		fmt.Fprintf(out, "%6.1fs %s\n", time.Since(begin).Seconds(), line)
	}
	err = errors.Join(lines.Err(), cmd.Wait())
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("the machine did not end in time: %w", context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("run QEMU: %w: %s", err, stderr.String())
	case result == "":
		return errors.New("the machine ended without a result; its last lines above may say why")
	case result == resultFail:
		return errors.New("tests failed")
	}
	return nil
}
