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
func boot(ctx context.Context, work, image, initrd string, processors []string, memory, params, folder string, out io.Writer) error {
	begin := time.Now()
	// On a busy machine the emulated timer is late, and the kernel would take it for a broken one.
	const always = "console=ttyS0 quiet panic=-1 no_timer_check "
	socket, end, err := serveFiles(ctx, work)
	if err != nil {
		return err
	}
	defer end()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", append(processors,
		"-cpu", "max", "-m", memory,
		"-object", "memory-backend-memfd,id=memory,share=on,size="+memory, "-numa", "node,memdev=memory",
		"-chardev", "socket,id=files,path="+socket, "-device", "vhost-user-fs-pci,chardev=files,tag="+machineTag,
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

// serveFiles starts the program that gives the machine this one's files, and returns its socket.
// It ends with the connection to QEMU; end ends it before there is one.
func serveFiles(ctx context.Context, work string) (socket string, end func(), err error) {
	program := "/usr/lib/qemu/virtiofsd" // of qemu-system-common
	if _, err := os.Stat(program); err != nil {
		program = "/usr/libexec/virtiofsd" // of the package virtiofsd, since Debian 13
	}
	socket = filepath.Join(work, "files.sock")
	log, err := os.Create(filepath.Join(work, "files.log"))
	if err != nil {
		return "", nil, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, program, "--socket-path="+socket, "--thread-pool-size=0", "-o", "source=/", "-o", "sandbox=chroot", "-o", "cache=always")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("serve files to the machine: %w", err)
	}
	var waitErr error
	ended := make(chan struct{})
	go func() { waitErr = cmd.Wait(); close(ended) }()
	end = func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
	}
	for {
		if _, err := os.Stat(socket); err == nil {
			return socket, end, nil
		}
		select {
		case <-ended:
			text, _ := os.ReadFile(log.Name())
			return "", nil, fmt.Errorf("serve files to the machine: %w: %s", waitErr, text)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
