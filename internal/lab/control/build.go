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

// programs are what Build makes, by their packages in the module test/kube. The API server comes
// first: it takes longest, and the others share most of its packages.
var programs = []struct{ name, pkg string }{
	{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"},
	{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"},
	{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"},
	{"kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"},
	{"kubectl", "k8s.io/kubernetes/cmd/kubectl"},
	{"etcd", "go.etcd.io/etcd/server/v3"},
}

// module is where the versions are pinned, below the root of a checkout.
var module = filepath.Join("test", "kube")

// Build returns the folder with the programs, below the user's cache folder. It builds what is
// missing, with the Go toolchain, from the module test/kube of the checkout that contains the
// working directory or this program. That takes some minutes, once. Outside a checkout it returns
// the last build. say, which may be nil, reports progress. Processes that build at the same time
// wait for each other.
func Build(ctx context.Context, say func(string)) (bin string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("build Kubernetes: %w", err)
	}
	src, err := findModule()
	if err != nil {
		if bin := built(cache); bin != "" {
			return bin, nil
		}
		return "", err
	}
	key, err := buildKey(src)
	if err != nil {
		return "", fmt.Errorf("build Kubernetes: %w", err)
	}
	bin = filepath.Join(cache, "sluice", "kubernetes-"+key)
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", fmt.Errorf("build Kubernetes: %w", err)
	}
	release, err := lockFolder(ctx, bin)
	if err != nil {
		return "", fmt.Errorf("build Kubernetes: %w", err)
	}
	defer release()
	if say == nil {
		say = func(string) {}
	}
	for i, p := range programs {
		if _, err := os.Stat(filepath.Join(bin, p.name)); err == nil {
			continue
		}
		say(fmt.Sprintf("building %s (%d of %d), once; in all that takes some minutes", p.name, i+1, len(programs)))
		if err := build(ctx, src, p.pkg, filepath.Join(bin, p.name)); err != nil {
			return "", fmt.Errorf("build %s: %w", p.name, err)
		}
	}
	return bin, nil
}

// Check returns which programs a folder lacks.
func Check(bin string) error {
	for _, p := range programs {
		if _, err := os.Stat(filepath.Join(bin, p.name)); err != nil {
			return fmt.Errorf("find the programs of Kubernetes: %w", err)
		}
	}
	return nil
}

// built returns the folder of the last complete build, or "".
func built(cache string) (newest string) {
	dirs, _ := filepath.Glob(filepath.Join(cache, "sluice", "kubernetes-*")) // the pattern is well-formed
	var when time.Time
	for _, dir := range dirs {
		info, err := os.Stat(filepath.Join(dir, programs[len(programs)-1].name)) // the one finished last
		if err == nil && info.ModTime().After(when) {
			newest, when = dir, info.ModTime()
		}
	}
	return newest
}

// findModule searches for test/kube upwards from the working directory, then from this program.
func findModule() (string, error) {
	var starts []string
	if dir, err := os.Getwd(); err == nil {
		starts = append(starts, dir)
	}
	if exe, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(exe))
	}
	for _, dir := range starts {
		for ; ; dir = filepath.Dir(dir) {
			if _, err := os.Stat(filepath.Join(dir, module, "go.mod")); err == nil {
				return filepath.Join(dir, module), nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", fmt.Errorf("find what Kubernetes is built from: there is no %s in the folders above; run this in a checkout of Sluice's sources", module)
}

// buildKey changes with everything that goes into the programs.
func buildKey(src string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), runtime.GOARCH, programs)
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(src, name))
		if err != nil {
			return "", err
		}
		h.Write(data)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// build makes one program. A file that exists is complete.
func build(ctx context.Context, src, pkg, to string) error {
	version, err := goCommand(ctx, src, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	flags := "-s -w -X k8s.io/component-base/version.gitVersion=" + strings.TrimSpace(version)
	if _, err := goCommand(ctx, src, "build", "-trimpath", "-ldflags", flags, "-o", to+".new", pkg); err != nil {
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
