package main

import (
	"bytes"
	"context"
	"debug/elf"
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

// fetchKernel downloads and unpacks a kernel's package below cache, unless it is there already.
func fetchKernel(ctx context.Context, cache, pkg string) (*kernel, error) {
	pkg, err := kernelPackage(ctx, pkg)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, pkg)
	if _, err := os.Stat(dir); err != nil {
		fmt.Printf("vm: downloading %s\n", pkg)
		if err := unpack(ctx, cache, pkg, dir); err != nil {
			return nil, err
		}
	}
	return openKernel(dir, strings.TrimPrefix(pkg, "linux-image-"))
}

// kernelPackage follows a package that only depends on the current kernel.
func kernelPackage(ctx context.Context, pkg string) (string, error) {
	depends := func() (string, error) { return output(ctx, "", "apt-cache", "depends", pkg) }
	out, err := depends()
	if err != nil { // no package lists yet
		fmt.Println("vm: fetching the lists of packages")
		if _, err = output(ctx, "", "apt-get", "update"); err == nil {
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
func unpack(ctx context.Context, cache, pkg, dir string) error {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(cache, "unpack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if _, err := output(ctx, tmp, "apt-get", "download", pkg); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("download %s: found %d packages, want 1", pkg, len(debs))
	}
	if _, err := output(ctx, tmp, "dpkg-deb", "-x", debs[0], "root"); err != nil {
		return err
	}
	return os.Rename(filepath.Join(tmp, "root"), dir)
}

func openKernel(dir, release string) (*kernel, error) {
	k := &kernel{
		release: release,
		image:   filepath.Join(dir, "boot", "vmlinuz-"+release),
		builtin: map[string]bool{},
		modules: map[string]string{},
	}
	lib := filepath.Join(dir, "lib", "modules", release)
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
