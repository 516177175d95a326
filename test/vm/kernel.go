package main

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// kernel is an unpacked kernel package.
type kernel struct {
	release string            // 6.1.0-56-cloud-amd64
	image   string            // path of vmlinuz
	builtin map[string]bool   // modules that are part of the image
	modules map[string]string // name → path of the others
}

// fetchKernel downloads and unpacks a kernel's package of a Debian suite below cache, unless it is
// there already.
func fetchKernel(ctx context.Context, cache, suite, pkg string) (*kernel, error) {
	a, err := newAPT(ctx, cache, suite)
	if err != nil {
		return nil, err
	}
	if pkg, err = a.kernelPackage(ctx, pkg); err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, pkg)
	if _, err := os.Stat(dir); err != nil {
		fmt.Printf("vm: downloading %s\n", pkg)
		if err := a.unpack(ctx, cache, pkg, dir); err != nil {
			return nil, err
		}
	}
	return openKernel(dir, strings.TrimPrefix(pkg, "linux-image-"))
}

// apt runs apt's commands with options.
type apt struct{ options []string }

// newAPT returns the machine's own apt or, for another suite of Debian, one with lists of its own
// below cache, from the same archive.
func newAPT(ctx context.Context, cache, suite string) (*apt, error) {
	if suite == "" {
		return &apt{}, nil
	}
	const targets = "$(REPO_URI) $(RELEASE)"
	out, err := output(ctx, "", "apt-get", "indextargets", "--format", targets, "Created-By: Packages", "Component: main", "Origin: Debian", "Label: Debian")
	if err != nil {
		return nil, err
	}
	archive, _, found := strings.Cut(out, " ")
	if !found {
		return nil, fmt.Errorf("find Debian's archive in apt's sources: 'apt-get update' reads their lists")
	}
	root := filepath.Join(cache, "apt-"+suite)
	list := filepath.Join(root, "sources.list")
	source := fmt.Sprintf("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n", archive, suite)
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "lists", "partial"), 0o755), os.WriteFile(list, []byte(source), 0o644)); err != nil {
		return nil, err
	}
	return &apt{[]string{
		"-o", "Dir::Etc::sourcelist=" + list, "-o", "Dir::Etc::sourceparts=/dev/null",
		"-o", "Dir::State::lists=" + filepath.Join(root, "lists"), "-o", "Dir::Cache=" + root, "-o", "Dir::State::status=/dev/null",
	}}, nil
}

func (a *apt) run(ctx context.Context, dir, name string, args ...string) (string, error) {
	return output(ctx, dir, name, append(slices.Clone(a.options), args...)...)
}

// kernelPackage follows a package that only depends on the current kernel.
func (a *apt) kernelPackage(ctx context.Context, pkg string) (string, error) {
	depends := func() (string, error) { return a.run(ctx, "", "apt-cache", "depends", pkg) }
	out, err := depends()
	if err != nil { // no package lists yet
		fmt.Println("vm: fetching the lists of packages")
		if _, err = a.run(ctx, "", "apt-get", "update"); err == nil {
			out, err = depends()
		}
		if err != nil {
			return "", err
		}
	}
	for line := range strings.Lines(out) {
		if dep, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: linux-image-"); ok {
			return "linux-image-" + dep, nil
		}
	}
	return pkg, nil
}

// unpack downloads a package and unpacks it into dir, which appears only when it is complete.
func (a *apt) unpack(ctx context.Context, cache, pkg, dir string) error {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(cache, "unpack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if _, err := a.run(ctx, tmp, "apt-get", "download", pkg); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("download %s: found %d packages, want 1", pkg, len(debs))
	}
	if _, err := output(ctx, tmp, "dpkg-deb", "-x", debs[0], "root"); err != nil {
		return err
	}
	if err := decompress(ctx, filepath.Join(tmp, "root")); err != nil {
		return err
	}
	return os.Rename(filepath.Join(tmp, "root"), dir)
}

// decompress unpacks compressed modules, as the guest has nothing to do it with.
func decompress(ctx context.Context, dir string) error {
	var files []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".ko.xz") {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		return err
	}
	if err := install(ctx, "xz", "xz-utils"); err != nil {
		return err
	}
	for some := range slices.Chunk(files, 1000) {
		if _, err := output(ctx, "", "xz", append([]string{"-d", "-T0"}, some...)...); err != nil {
			return err
		}
	}
	return nil
}

func openKernel(dir, release string) (*kernel, error) {
	k := &kernel{
		release: release,
		image:   filepath.Join(dir, "boot", "vmlinuz-"+release),
		builtin: map[string]bool{},
		modules: map[string]string{},
	}
	lib := filepath.Join(dir, "lib", "modules", release)
	if _, err := os.Stat(lib); err != nil { // since Debian 13
		lib = filepath.Join(dir, "usr", "lib", "modules", release)
	}
	b, err := os.ReadFile(filepath.Join(lib, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("read the kernel's modules: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		k.builtin[moduleName(strings.TrimSpace(line))] = true
	}
	err = filepath.WalkDir(lib, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".ko") {
			k.modules[moduleName(path)] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find the kernel's modules: %w", err)
	}
	return k, nil
}

// moduleName is the name that the kernel has for a module file: dashes and underscores are the
// same.
func moduleName(path string) string {
	return strings.ReplaceAll(strings.TrimSuffix(filepath.Base(path), ".ko"), "-", "_")
}

// order returns the files of the named modules and all that they depend on, each
// after its dependencies.
func (k *kernel) order(names []string) ([]string, error) {
	var files []string
	var add func(name string) error
	add = func(name string) error {
		if k.builtin[name] {
			return nil
		}
		path, ok := k.modules[name]
		if !ok && name == "nft_objref" { // a part of nf_tables since 6.2
			return nil
		}
		if !ok {
			return fmt.Errorf("kernel %s has no module %s", k.release, name)
		}
		if slices.Contains(files, path) {
			return nil
		}
		deps, err := moduleDepends(path)
		if err != nil {
			return err
		}
		for _, dep := range deps {
			if err := add(dep); err != nil {
				return err
			}
		}
		files = append(files, path)
		return nil
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// moduleDepends reads the names of the modules that one needs out of its
// .modinfo section, as depmod does.
func moduleDepends(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read module %s: %w", path, err)
	}
	defer f.Close()
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("read module %s: it has no .modinfo", path)
	}
	info, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("read module %s: %w", path, err)
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if deps, ok := strings.CutPrefix(string(field), "depends="); ok && deps != "" {
			return strings.Split(strings.ReplaceAll(deps, "-", "_"), ","), nil
		}
	}
	return nil, nil
}
