package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// boot runs a machine until it powers itself off, copies its console to out, and the files that
// come by it into a folder, and returns nil if it reported that all went well.
func boot(ctx context.Context, image, initrd string, processors []string, memory, params, folder string, out io.Writer) error {
	begin := time.Now()
	// On a busy machine the emulated timer is late, and the kernel would take it for a broken one.
	const always = "console=ttyS0 quiet panic=-1 no_timer_check "
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", append(processors,
		"-cpu", "max", "-m", memory,
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio",
		"-kernel", image, "-initrd", initrd,
		"-append", always+params)...)
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
	var files error
	lines := bufio.NewScanner(console)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		if file, ok := strings.CutPrefix(line, fileMark); ok {
			files = errors.Join(files, keep(folder, file))
			continue
		}
		if line == resultPass || line == resultFail {
			result = line
		}
		fmt.Fprintf(out, "%6.1fs %s\n", time.Since(begin).Seconds(), line)
	}
	err = errors.Join(lines.Err(), cmd.Wait(), files)
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

// keep writes a file that came as its name and its content in base64.
func keep(folder, line string) error {
	name, text, _ := strings.Cut(line, " ")
	content, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return fmt.Errorf("read %s from the console: %w", name, err)
	}
	return os.WriteFile(filepath.Join(folder, filepath.Base(name)), content, 0o644)
}
