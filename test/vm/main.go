// Command vm runs the kernel tests of packages in a virtual machine with a stock cloud kernel of
// Debian: that of Debian 12 (6.1) is the oldest that the project supports, -suite trixie has 6.12.
//
//	go run ./test/vm [flags] [package directory ...]
//	go run ./test/vm -program 'lab up --fabric ipip' -program 'lab probe'
//	go run ./test/vm -memory 8G -program 'lab e2e sig-network --data-plane sluice-ipvs --focus NodePort.service'
//
// It fetches the kernel's package with apt-get (once; it is kept in bin/vm), builds the packages'
// test binaries, boots the kernel in QEMU with itself as /init, and shows the machine's console.
// The machine has the files of this one, by virtiofs, with all programs that are installed; what it
// writes is in memory. It has no network. QEMU emulates the processor, unless -accel says
// otherwise. The exit status is 0 only if the machine said that every test passed.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	built "sluice.dev/sluice/test/programs"
)

// packages are tested when none are named.
var packages = []string{"internal/kernel/conntrack", "internal/fabric/kernel", "internal/balancer/nftables", "internal/driver/ipvs", "internal/driver/nftables", "test/policytest", "cmd/sluice"}

// only are the tests of a package that need what the guest has, where -run names none.
var only = map[string]string{"cmd/sluice": "^Test(BalanceTunnel|Encrypt|Fabric|FlowOffload|ModeSwitchIPVS)$", "internal/balancer/nftables": "^TestTunnel"}

// commands are the values of a flag that is given several times.
type commands []string

func (c *commands) String() string { return strings.Join(*c, "; ") }

func (c *commands) Set(text string) error {
	*c = append(*c, text)
	return nil
}

func main() {
	if os.Args[0] == guestInit {
		guest()
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	runFlag := flag.String("run", "", "run only the tests that match this `regexp`")
	benchFlag := flag.String("bench", "", "run the benchmarks that match this `regexp`, too")
	icount := flag.Bool("icount", false, "give the machine one processor, to which an instruction is a nanosecond, whatever else runs here")
	verbose := flag.Bool("v", false, "list each test")
	more := flag.String("args", "", "further `arguments` for the tests: flags of their own")
	timeout := flag.Duration("timeout", 90*time.Minute, "give up after this `time`")
	kernelFlag := flag.String("kernel", "linux-image-cloud-amd64", "Debian `package` of the kernel, or one that depends on it")
	suite := flag.String("suite", "", "the Debian `suite` of the kernel: trixie, for one (default: this machine's)")
	accel := flag.String("accel", "tcg,thread=multi", "QEMU's `accelerator`; kvm is ten times as fast where it works")
	memory := flag.String("memory", "2G", "the machine's memory `size`, as QEMU writes it")
	params := flag.String("append", "", "further kernel `parameters`; loglevel=7 shows the traces of warnings")
	var programs commands
	flag.Var(&programs, "program", "`arguments` to run sluice lab or sluice bench with, instead of tests; several times for one after the other. What they leave in /out is copied to -out")
	out := flag.String("out", ".", "`folder` for what programs leave in /out")
	flag.Parse()
	dirs := flag.Args()
	if len(dirs) == 0 && len(programs) == 0 {
		dirs = packages
	}

	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	root, err := output(ctx, "", "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return err
	}
	root = strings.TrimSpace(root)
	cache := filepath.Join(root, "bin", "vm")
	if err := install(ctx, "qemu-system-x86_64", "qemu-system-x86"); err != nil {
		return err
	}
	k, err := fetchKernel(ctx, cache, *suite, *kernelFlag)
	if err != nil {
		return err
	}
	fmt.Printf("vm: kernel %s\n", k.release)

	args := []string{"-test.timeout=" + timeout.String()}
	if *runFlag != "" {
		args = append(args, "-test.run="+*runFlag)
	}
	if *benchFlag != "" {
		args = append(args, "-test.bench="+*benchFlag)
	}
	if *verbose {
		args = append(args, "-test.v")
	}
	args = append(args, strings.Fields(*more)...)
	begin := time.Now()
	work, err := os.MkdirTemp(cache, "run-") // the guest has another /tmp
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	bin, err := built.Folder()
	if err != nil {
		return err
	}
	tests, err := build(ctx, work, root, dirs, args)
	if err != nil {
		return err
	}
	for _, line := range programs {
		tests = append(tests, test{Name: "sluice " + line, Binary: filepath.Join(bin, "sluice-lab"), Dir: root, Args: strings.Fields(line)})
	}
	userCache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	initrd := filepath.Join(work, "initrd")
	if err := pack(ctx, initrd, work, root, k, plan{Tests: tests, Env: append(os.Environ(), built.Env+"="+bin), Cache: filepath.Join(userCache, "sluice")}); err != nil {
		return err
	}
	fmt.Printf("vm: built and packed in %v\n", time.Since(begin).Round(time.Millisecond))
	processors := []string{"-accel", *accel, "-smp", "2"}
	if *icount {
		processors = []string{"-accel", "tcg,thread=single", "-icount", "shift=0", "-smp", "1"}
	}
	return boot(ctx, work, k.image, initrd, processors, *memory, *params, *out, os.Stdout)
}

// install installs a Debian package for the sake of a program, unless the program is there.
func install(ctx context.Context, program, pkg string) error {
	if _, err := exec.LookPath(program); err == nil {
		return nil
	}
	fmt.Printf("vm: installing %s for %s\n", pkg, program)
	_, err := output(ctx, "", "apt-get", "install", "-y", "--no-install-recommends", pkg)
	return err
}

// output runs a command in a directory and returns its standard output; an error contains its
// standard error.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "LC_ALL=C")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("run %s: %w\n%s%s", strings.Join(cmd.Args, " "), err, out, stderr.String())
	}
	return string(out), nil
}
