package control

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A set of programs is built together, from modules below test/ that pin their versions.
type set struct {
	name     string // of its folder in the cache
	programs []program
}

type program struct {
	name   string
	module string // its folder below test/
	pkg    string
	tags   string
}

// kubernetes is what a lab runs. The API server comes first: it takes longest, and the others share
// most of its packages.
var kubernetes = set{"kubernetes", []program{
	{name: "kube-apiserver", module: "kube", pkg: "k8s.io/kubernetes/cmd/kube-apiserver"},
	{name: "kube-controller-manager", module: "kube", pkg: "k8s.io/kubernetes/cmd/kube-controller-manager"},
	{name: "kube-scheduler", module: "kube", pkg: "k8s.io/kubernetes/cmd/kube-scheduler"},
	{name: "kube-proxy", module: "kube", pkg: "k8s.io/kubernetes/cmd/kube-proxy"},
	{name: "kubectl", module: "kube", pkg: "k8s.io/kubernetes/cmd/kubectl"},
	{name: "etcd", module: "kube", pkg: "go.etcd.io/etcd/server/v3"},
}}

// tools are what tests run beside it. Without its tag, promtool has the clients of all clouds,
// where Prometheus finds what to scrape.
var tools = set{"tools", []program{
	{name: "helm", module: "kube/helm", pkg: "helm.sh/helm/v4/cmd/helm"},
	{name: "promtool", module: "monitoring", pkg: "github.com/prometheus/prometheus/cmd/promtool", tags: "remove_all_sd"},
	{name: "dashboard", module: "monitoring", pkg: "./dashboard"},
	{name: "operator", module: "monitoring", pkg: "./operator"},
}}

// Build returns the folder with the programs of Kubernetes, below the user's cache folder. It
// builds what is missing, with the Go toolchain, from the module test/kube of the checkout that
// contains the working directory or this program. That takes some minutes, once. Outside a checkout
// it returns the last build. say, which may be nil, reports progress. Processes that build at the
// same time wait for each other.
func Build(ctx context.Context, say func(string)) (bin string, err error) {
	return kubernetes.build(ctx, say)
}

// BuildTools is Build for what only tests run: helm; promtool, and the checks of test/monitoring.
func BuildTools(ctx context.Context, say func(string)) (bin string, err error) {
	return tools.build(ctx, say)
}

func (s set) build(ctx context.Context, say func(string)) (bin string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("build %s: %w", s.name, err)
	}
	src, err := findModules()
	if err != nil {
		if bin := s.built(cache); bin != "" {
			return bin, nil
		}
		return "", err
	}
	key, err := s.key(src)
	if err != nil {
		return "", fmt.Errorf("build %s: %w", s.name, err)
	}
	bin = filepath.Join(cache, "sluice", s.name+"-"+key)
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", fmt.Errorf("build %s: %w", s.name, err)
	}
	release, err := lockFolder(ctx, bin)
	if err != nil {
		return "", fmt.Errorf("build %s: %w", s.name, err)
	}
	defer release()
	if say == nil {
		say = func(string) {}
	}
	for i, p := range s.programs {
		if _, err := os.Stat(filepath.Join(bin, p.name)); err == nil {
			continue
		}
		say(fmt.Sprintf("building %s (%d of %d), once; in all that takes some minutes", p.name, i+1, len(s.programs)))
		if err := p.build(ctx, src, filepath.Join(bin, p.name)); err != nil {
			return "", fmt.Errorf("build %s: %w", p.name, err)
		}
	}
	return bin, nil
}

// Check returns which programs a folder lacks.
func Check(bin string) error {
	for _, p := range kubernetes.programs {
		if _, err := os.Stat(filepath.Join(bin, p.name)); err != nil {
			return fmt.Errorf("find the programs of Kubernetes: %w", err)
		}
	}
	return nil
}

// built returns the folder of the last complete build, or "".
func (s set) built(cache string) (newest string) {
	dirs, _ := filepath.Glob(filepath.Join(cache, "sluice", s.name+"-*")) // the pattern is well-formed
	var when time.Time
	for _, dir := range dirs {
		info, err := os.Stat(filepath.Join(dir, s.programs[len(s.programs)-1].name)) // the one finished last
		if err == nil && info.ModTime().After(when) {
			newest, when = dir, info.ModTime()
		}
	}
	return newest
}

// findModules searches for the folder of the modules upwards from the working directory, then from
// this program.
func findModules() (string, error) {
	var starts []string
	if dir, err := os.Getwd(); err == nil {
		starts = append(starts, dir)
	}
	if exe, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(exe))
	}
	module := filepath.Join("test", "kube", "go.mod")
	for _, dir := range starts {
		for ; ; dir = filepath.Dir(dir) {
			if _, err := os.Stat(filepath.Join(dir, module)); err == nil {
				return filepath.Join(dir, "test"), nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", fmt.Errorf("find what Kubernetes is built from: there is no %s in the folders above; run this in a checkout of Sluice's sources", module)
}

// key changes with everything that goes into the programs.
func (s set) key(src string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), runtime.GOARCH, s)
	for _, p := range s.programs {
		files := []string{"go.mod", "go.sum"}
		own, _ := filepath.Glob(filepath.Join(src, p.module, p.pkg, "*.go")) // the pattern is well-formed
		for _, f := range own {
			files = append(files, filepath.Join(p.pkg, filepath.Base(f)))
		}
		for _, f := range files {
			data, err := os.ReadFile(filepath.Join(src, p.module, f))
			if err != nil {
				return "", err
			}
			h.Write(data)
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// build makes the program. A file that exists is complete.
func (p program) build(ctx context.Context, src, to string) error {
	dir := filepath.Join(src, p.module)
	flags := "-s -w"
	if p.module == "kube" {
		version, err := goCommand(ctx, dir, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
		if err != nil {
			return err
		}
		flags += " -X k8s.io/component-base/version.gitVersion=" + strings.TrimSpace(version)
	}
	if _, err := goCommand(ctx, dir, "build", "-trimpath", "-tags", p.tags, "-ldflags", flags, "-o", to+".new", p.pkg); err != nil {
		return err
	}
	return os.Rename(to+".new", to)
}

func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("the Go toolchain is needed, and 'go' is not in PATH: %w", err)
	}
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, errs.Bytes())
	}
	return out.String(), nil
}

// lockFolder waits until no other process builds into the folder.
func lockFolder(ctx context.Context, dir string) (release func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another process that builds: %w", ctx.Err()), f.Close())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
