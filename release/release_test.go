package main

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	spdxjson "github.com/spdx/tools-golang/json"
	"golang.org/x/sys/unix"
)

// do runs a command and returns what it prints.
func do(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// clone clones the checkout's commit.
func clone(t *testing.T) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "sluice")
	do(t, "..", "git", "clone", "--quiet", ".", to)
	return to
}

// make builds a release for this machine's architecture.
func makeRelease(t *testing.T, root string) *release {
	t.Helper()
	r := &release{root: root, out: t.TempDir(), arches: []string{runtime.GOARCH}}
	if err := r.build(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	return r
}

// digests of all files in a folder, by their names.
func digests(t *testing.T, dir string) map[string]digest.Digest {
	t.Helper()
	all := map[string]digest.Digest{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		all[rel] = digest.FromBytes(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Two clones of one commit give the same files, which are what their formats ask for. Then a later
// version is installed over the first.
func TestRelease(t *testing.T) {
	one, two := makeRelease(t, clone(t)), clone(t)
	again := makeRelease(t, two)
	a, b := digests(t, one.out), digests(t, again.out)
	for name, d := range a {
		if b[name] != d {
			t.Errorf("%s differs between two builds of one commit", name)
		}
		delete(b, name)
	}
	if len(b) > 0 {
		t.Errorf("one build has more files: %v", b)
	}
	do(t, one.out, "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")
	t.Run("materials", func(t *testing.T) { checkMaterials(t, one) })
	t.Run("image", func(t *testing.T) { checkImage(t, one) })
	t.Run("chart", func(t *testing.T) { checkChart(t, one) })

	later := filepath.Join(two, chartDir, "Chart.yaml")
	text, err := os.ReadFile(later)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(later, bytes.ReplaceAll(text, []byte(one.version), []byte("99.0.0")), 0o644); err != nil {
		t.Fatal(err)
	}
	next := makeRelease(t, two)
	t.Run("deb", func(t *testing.T) {
		checkPackage(t, one, next, "*.deb", []string{"dpkg", "--install"}, []string{"dpkg", "--purge", "sluice"})
	})
	t.Run("rpm", func(t *testing.T) {
		checkPackage(t, one, next, "*.rpm", []string{"rpm", "--upgrade", "--nodeps"}, []string{"rpm", "--erase", "sluice"})
	})
}

// checkMaterials reads the bill of materials as other tools do.
func checkMaterials(t *testing.T, r *release) {
	f, err := os.Open(filepath.Join(r.out, "sluice-"+r.version+".spdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	doc, err := spdxjson.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range doc.Packages {
		names = append(names, p.PackageName)
	}
	for _, want := range []string{"sluice", "stdlib", "github.com/google/nftables", "github.com/osrg/gobgp/v4", "github.com/containernetworking/cni"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is missing", want)
		}
	}
	if len(doc.Relationships) != len(doc.Packages) {
		t.Errorf("%d relationships of %d packages", len(doc.Relationships), len(doc.Packages))
	}
}

// blob reads a blob of a layout, and checks its digest.
func blob(t *testing.T, layout string, d ocispec.Descriptor) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(layout, "blobs", d.Digest.Algorithm().String(), d.Digest.Encoded()))
	if err != nil {
		t.Fatal(err)
	}
	if digest.FromBytes(text) != d.Digest || int64(len(text)) != d.Size {
		t.Errorf("%s is not what its descriptor says", d.Digest)
	}
	return text
}

func parse[T any](t *testing.T, text []byte) (v T) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func tagged(t *testing.T, layout, version string) ocispec.Descriptor {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(layout, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	all := parse[ocispec.Index](t, text).Manifests
	if len(all) != 1 {
		t.Errorf("%s lists %d: podman loads a file only if it is one", layout, len(all))
	}
	for _, d := range all {
		if d.Annotations[ocispec.AnnotationRefName] == version {
			return d
		}
	}
	t.Fatalf("nothing is tagged %s: %s", version, text)
	return ocispec.Descriptor{}
}

// checkImage follows an image's index down to the programs.
func checkImage(t *testing.T, r *release) {
	layout := filepath.Join(r.out, "image")
	index := parse[ocispec.Index](t, blob(t, layout, tagged(t, layout, r.version)))
	if len(index.Manifests) != 1 || index.Manifests[0].Platform.Architecture != runtime.GOARCH {
		t.Fatalf("index %+v", index)
	}
	manifest := parse[ocispec.Manifest](t, blob(t, layout, index.Manifests[0]))
	config := parse[ocispec.Image](t, blob(t, layout, manifest.Config))
	root := t.TempDir()
	layer := filepath.Join(t.TempDir(), "layer.tar.gz")
	if err := os.WriteFile(layer, blob(t, layout, manifest.Layers[0]), 0o644); err != nil {
		t.Fatal(err)
	}
	do(t, root, "tar", "-xzf", layer)
	plain, err := exec.CommandContext(t.Context(), "gzip", "-dc", layer).Output()
	if err != nil || digest.FromBytes(plain) != config.RootFS.DiffIDs[0] {
		t.Errorf("the layer is not what the config says: %v", err)
	}
	for _, p := range append([]string{"/licenses/LICENSE", "/licenses/LICENSES"}, config.Config.Entrypoint...) {
		if info, err := os.Stat(root + p); err != nil || info.Size() == 0 {
			t.Errorf("%s in the image: %v", p, err)
		}
	}
	program, err := elf.Open(root + config.Config.Entrypoint[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = program.Close() }()
	if libs, err := program.ImportedLibraries(); err != nil || len(libs) > 0 {
		t.Errorf("an image without libraries has a program that needs %v: %v", libs, err)
	}
	if got := do(t, root, root+config.Config.Entrypoint[0], "--version"); !strings.Contains(got, "v"+r.version) {
		t.Errorf("--version prints %q", got)
	}
	loaded := t.TempDir()
	do(t, loaded, "tar", "-xf", filepath.Join(r.out, "sluice-"+r.version+"-image.tar"))
	if d := tagged(t, loaded, r.version); d.Annotations["io.containerd.image.name"] != r.repository+":"+r.version {
		t.Errorf("containerd would call the image %q", d.Annotations["io.containerd.image.name"])
	}
}

// An image of several architectures is one entry of its layout, and the same each time.
func TestImageOfArchitectures(t *testing.T) {
	r := &release{root: "..", work: t.TempDir(), version: "1.2.3", repository: "registry.example/sluice", time: time.Unix(1, 0).UTC(), arches: []string{"amd64", "arm64"}}
	write := func(name string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(name), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	write(r.notices())
	for _, arch := range r.arches {
		for _, p := range programs {
			write(r.binary(arch, p))
		}
	}
	build := func() map[string]digest.Digest {
		t.Helper()
		r.out = t.TempDir()
		if err := r.image(); err != nil {
			t.Fatal(err)
		}
		return digests(t, r.out)
	}
	first := build()
	layout := filepath.Join(r.out, "image")
	if index := parse[ocispec.Index](t, blob(t, layout, tagged(t, layout, r.version))); len(index.Manifests) != len(r.arches) {
		t.Errorf("index %+v", index)
	}
	if again := build(); !maps.Equal(first, again) {
		t.Errorf("built again, %v is %v", first, again)
	}
}

// checkChart has Helm read the packed chart, and compares it with the one for registries.
func checkChart(t *testing.T, r *release) {
	packed := filepath.Join(r.out, "sluice-"+r.version+".tgz")
	out := do(t, filepath.Join("..", "test", "kube", "helm"), "go", "tool", "helm", "template", packed, "--set", "kubernetes.host=10.0.0.10")
	if image := "image: " + r.repository + ":" + r.version; !strings.Contains(out, image) {
		t.Errorf("the chart does not run %s:\n%s", image, out)
	}
	layout := filepath.Join(r.out, "chart")
	manifest := parse[ocispec.Manifest](t, blob(t, layout, tagged(t, layout, r.version)))
	text, err := os.ReadFile(packed)
	if err != nil || manifest.Layers[0].MediaType != chartContent || !bytes.Equal(blob(t, layout, manifest.Layers[0]), text) {
		t.Errorf("the chart for registries is another one: %v", err)
	}
	meta := parse[struct{ Name, Version string }](t, blob(t, layout, manifest.Config))
	if meta.Name != "sluice" || meta.Version != r.version || manifest.Config.MediaType != chartConfig {
		t.Errorf("the chart's config is %+v", meta)
	}
}

// checkPackage installs a package in a new Debian, runs the agent, upgrades, runs that agent on
// what the former programmed, and removes the package, after which nothing is left, neither files
// nor tables.
func checkPackage(t *testing.T, before, after *release, pattern string, install, remove []string) {
	root := newDebian(t)
	had := digests(t, filepath.Join(root, "etc"))
	in := func(args ...string) string { return do(t, root, "chroot", append([]string{root}, args...)...) }
	file := func(r *release) string {
		found, err := filepath.Glob(filepath.Join(r.out, pattern))
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		text, err := os.ReadFile(found[0])
		if err == nil {
			err = os.WriteFile(filepath.Join(root, "package"), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		return "/package"
	}
	in(append(install, file(before))...)
	if got := in("sluice", "--version"); !strings.Contains(got, "v"+before.version) {
		t.Errorf("--version prints %q", got)
	}
	runAgent(t, root)

	const changed = "SLUICE_ARGS=\"--manifests /etc/sluice/manifests\"\n"
	if err := os.WriteFile(filepath.Join(root, "etc/default/sluice"), []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
	in(append(install, file(after))...)
	if got := in("sluice", "--version"); !strings.Contains(got, "v99.0.0") {
		t.Errorf("--version prints %q after the upgrade", got)
	}
	if text, err := os.ReadFile(filepath.Join(root, "etc/default/sluice")); err != nil || string(text) != changed {
		t.Errorf("the upgrade changed /etc/default/sluice: %s, %v", text, err)
	}
	if !strings.Contains(tables(t), "sluice") {
		t.Errorf("the upgrade removed what the kernel had: %s", tables(t))
	}
	runAgent(t, root)

	in(remove...)
	for name := range digests(t, filepath.Join(root, "etc")) {
		if _, ok := had[name]; !ok && name != "default/sluice.rpmsave" { // rpm keeps what somebody changed
			t.Errorf("/etc/%s is left", name)
		}
	}
	for _, path := range []string{"usr/sbin/sluice", "usr/sbin/sluice-bgp", "usr/sbin/sluice-cni", "usr/share/doc/sluice", "usr/lib/systemd/system/sluice.service", "run/sluice"} {
		if _, err := os.Lstat(filepath.Join(root, path)); err == nil {
			t.Errorf("/%s is left", path)
		}
	}
	if left := tables(t); left != "" {
		t.Errorf("tables are left: %s", left)
	}
}

func tables(t *testing.T) string { return strings.TrimSpace(do(t, "/", "nft", "list", "tables")) }

// newDebian makes a Debian of nothing but what every system has, and rpm, and has this test's
// thread enter a network namespace.
func newDebian(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "debian")
	do(t, "/", "mmdebstrap", "--quiet", "--variant=essential", "--include=rpm", "bookworm", root)
	for dir, kind := range map[string]string{"proc": "proc", "sys": "sysfs"} {
		at := filepath.Join(root, dir)
		if err := unix.Mount(kind, at, kind, 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	runtime.LockOSThread() // and never unlock it: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	do(t, "/", "ip", "link", "set", "lo", "up")
	return root
}

// runAgent runs the installed agent until it has programmed the kernel, and ends it.
func runAgent(t *testing.T, root string) {
	t.Helper()
	manifests := filepath.Join(root, "etc/sluice/manifests")
	if err := os.MkdirAll(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.RemoveAll(filepath.Join(root, "etc/sluice")); err != nil {
			t.Error(err)
		}
	}()
	var objects bytes.Buffer
	fmt.Fprintln(&objects, `{apiVersion: v1, kind: Node, metadata: {name: here}, status: {addresses: [{type: InternalIP, address: 127.0.0.1}]}}`)
	if err := os.WriteFile(filepath.Join(manifests, "node.yaml"), objects.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var log bytes.Buffer
	agent := exec.CommandContext(ctx, "chroot", root, "/usr/sbin/sluice", "run", "--manifests", "/etc/sluice/manifests", "--node", "here", "--metrics-address=", "--healthz-address=")
	agent.Stdout, agent.Stderr = &log, &log
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- agent.Wait() }()
	for {
		if err := exec.CommandContext(ctx, "chroot", root, "/usr/sbin/sluice", "sync", "--timeout", "10s").Run(); err == nil {
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("the agent ended: %v\n%s", err, log.String())
		case <-time.After(100 * time.Millisecond):
		}
	}
	if err := agent.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the agent: %v\n%s", err, log.String())
	}
	if !strings.Contains(tables(t), "sluice") {
		t.Errorf("the agent has no table:\n%s", log.String())
	}
}
