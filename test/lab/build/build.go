// Package build makes what the lab runs and the project does not contain: programs from Go modules
// below test/, which pin their versions. What was built stays in the user's cache folder.
package build

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
	"slices"
	"strings"
)

// Set is a set of programs that are built together.
type Set struct {
	Name     string // of its folder in the cache
	Programs []Program
}

// Program is a Go program to build.
type Program struct {
	Name    string
	Module  string // its folder below test/
	Package string
	Tags    string
	Test    bool   // it is the package's tests
	Link    string // further flags of the linker
	With    string // a package in a folder of the module that stands in for another; "" for none
}

// Build returns the folder with the programs, or at least those that are named. It builds what is
// missing, with the Go toolchain, from the modules of the checkout that contains the working
// directory or this program. Outside a checkout it returns the last build. say, which may be nil,
// reports progress. Processes that build at the same time wait for each other.
func (s Set) Build(ctx context.Context, say func(string), names ...string) (bin string, err error) {
	if len(names) == 0 {
		for _, p := range s.Programs {
			names = append(names, p.Name)
		}
	}
	src, err := Modules()
	if err != nil {
		if bin := Newest(s.Name, names[len(names)-1]); bin != "" {
			return bin, nil
		}
		return "", err
	}
	key, err := s.Key(src)
	if err != nil {
		return "", fmt.Errorf("build %s: %w", s.Name, err)
	}
	bin, release, err := Folder(ctx, s.Name, key)
	if err != nil {
		return "", fmt.Errorf("build %s: %w", s.Name, err)
	}
	defer release()
	if say == nil {
		say = func(string) {}
	}
	for i, p := range s.Programs {
		if _, err := os.Stat(filepath.Join(bin, p.Name)); err == nil || !slices.Contains(names, p.Name) {
			continue
		}
		say(fmt.Sprintf("building %s (%d of %d), once; in all that takes some minutes", p.Name, i+1, len(s.Programs)))
		if err := p.build(ctx, src, filepath.Join(bin, p.Name)); err != nil {
			return "", fmt.Errorf("build %s: %w", p.Name, err)
		}
	}
	return bin, nil
}

// Check returns an error unless a folder has all programs of the set.
func (s Set) Check(bin string) error {
	for _, p := range s.Programs {
		if _, err := os.Stat(filepath.Join(bin, p.Name)); err != nil {
			return err
		}
	}
	return nil
}

// Modules searches for the folder of the modules, which is test/ of a checkout, upwards from the
// working directory, then from this program.
func Modules() (string, error) {
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

// Key changes with everything that goes into the programs. src is the folder of the modules.
func (s Set) Key(src string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), runtime.GOARCH, s)
	for _, p := range s.Programs {
		files := []string{filepath.Join(src, p.Module, "go.mod"), filepath.Join(src, p.Module, "go.sum")}
		for _, own := range []string{p.Package, p.With} {
			matches, _ := filepath.Glob(filepath.Join(src, p.Module, own, "*.go")) // the pattern is well-formed
			files = append(files, matches...)
		}
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				return "", err
			}
			h.Write(data)
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// build makes the program. A file that exists is complete.
func (p Program) build(ctx context.Context, src, to string) error {
	dir := filepath.Join(src, p.Module)
	flags := strings.TrimSpace("-s -w " + p.Link)
	if p.Module == "kube" || strings.HasPrefix(p.Package, "k8s.io/kubernetes/") {
		version, err := Go(ctx, dir, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
		if err != nil {
			return err
		}
		flags += " -X k8s.io/component-base/version.gitVersion=" + strings.TrimSpace(version)
	}
	command := []string{"build"}
	if p.Test {
		command = []string{"test", "-c", "-vet=off"} // vet looks at all that is linked, for minutes
	}
	// As in the Makefile, with which packages are shared that are of one version.
	command = append(command, "-trimpath", "-gcflags=all=-dwarf=false", "-tags", p.Tags)
	if _, err := Go(ctx, dir, append(command, "-ldflags", flags, "-o", to+".new", p.Package)...); err != nil {
		return err
	}
	return os.Rename(to+".new", to)
}

// Required returns the folder of a Go module that one of the modules, a folder below src, requires.
func Required(ctx context.Context, src, module, path string) (string, error) {
	out, err := Go(ctx, filepath.Join(src, module), "list", "-m", "-f", "{{.Dir}}", path)
	return strings.TrimSpace(out), err
}

// Go runs the go command in a folder and returns what it prints. The user's flags and workspaces
// have no influence on it. Compilers take more memory, and a tenth less time, than by default.
func Go(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOGC=400")
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
