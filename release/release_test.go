package main

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	spdxjson "github.com/spdx/tools-golang/json"
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

// newRelease is a release of a checkout for some architectures, which is not built yet.
func newRelease(t *testing.T, root string, arches ...string) *release {
	return &release{root: root, out: t.TempDir(), arches: arches}
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
	one, again := newRelease(t, clone(t), "amd64", "arm64"), newRelease(t, clone(t), "amd64", "arm64")
	next := newRelease(t, later(t), runtime.GOARCH)
	builds := func(t *testing.T) {
		build := func(name string, r *release, steps ...func() error) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				if err := r.build(t.Context(), steps...); err != nil {
					t.Fatal(err)
				}
			})
		}
		build("one", one, one.all()...)
		build("again", again, again.all()...)
		build("next", next, next.packages)
	}
	if !t.Run("builds", builds) {
		return
	}
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
	for name, check := range map[string]func(*testing.T, *release){
		"materials": checkMaterials, "architectures": checkArchitectures, "image": checkImage, "chart": checkChart,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, one)
		})
	}
	t.Run("packages", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		for _, s := range services {
			t.Run("deb "+s.name, func(t *testing.T) { b.checkDeb(t, s, one, next) })
			t.Run("rpm "+s.name, func(t *testing.T) { b.checkRPM(t, s, one, next) })
		}
	})
}

// later is a checkout of a later version.
func later(t *testing.T) string {
	t.Helper()
	checkout := clone(t)
	meta := filepath.Join(checkout, chartDir, "Chart.yaml")
	text, err := os.ReadFile(meta)
	if err != nil {
		t.Fatal(err)
	}
	text = regexp.MustCompile(`(?m)^((?:v|appV)ersion:).*`).ReplaceAll(text, []byte(`$1 "99.0.0"`))
	if err := os.WriteFile(meta, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return checkout
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
	if len(index.Manifests) != len(r.arches) {
		t.Fatalf("index %+v", index)
	}
	for i, arch := range r.arches {
		manifest := parse[ocispec.Manifest](t, blob(t, layout, index.Manifests[i]))
		config := parse[ocispec.Image](t, blob(t, layout, manifest.Config))
		if index.Manifests[i].Platform.Architecture != arch || config.Architecture != arch {
			t.Errorf("the image for %s is called that for %s and %s", arch, index.Manifests[i].Platform.Architecture, config.Architecture)
		}
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
		checkPrograms(t, r, arch, filepath.Join(root, "usr/local/bin"))
	}
	loaded := t.TempDir()
	do(t, loaded, "tar", "-xf", filepath.Join(r.out, "sluice-"+r.version+"-image.tar"))
	if d := tagged(t, loaded, r.version); d.Annotations["io.containerd.image.name"] != r.repository+":"+r.version {
		t.Errorf("containerd would call the image %q", d.Annotations["io.containerd.image.name"])
	}
}

// architecture is how others call an architecture of Go's.
type architecture struct {
	rpm  string // deb has Go's names
	elf  elf.Machine
	qemu string // the program that runs its programs elsewhere
}

var architectures = map[string]architecture{
	"amd64": {"x86_64", elf.EM_X86_64, "qemu-x86_64-static"},
	"arm64": {"aarch64", elf.EM_AARCH64, "qemu-aarch64-static"},
}

// checked has the programs that were checked, by architecture, name and digest.
var checked sync.Map

// checkPrograms runs the programs in a folder, which are for an architecture and need no libraries.
// Archives, packages and images have the same ones, which need to be run in one place only.
func checkPrograms(t *testing.T, r *release, arch, dir string) {
	t.Helper()
	for _, p := range programs {
		path := filepath.Join(dir, p)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode()&0o111 != 0o111 {
			t.Errorf("%s cannot be run by everybody: %v, %v", path, info, err)
		}
		if _, known := checked.LoadOrStore([...]string{arch, p, digest.FromBytes(text).String()}, true); known {
			continue
		}
		program, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if libs, err := program.ImportedLibraries(); err != nil || len(libs) > 0 || program.Machine != architectures[arch].elf {
			t.Errorf("%s for %s is for %s, and needs the libraries %v: %v", p, arch, program.Machine, libs, err)
		}
		_ = program.Close()
		command := []string{path, "--version"}
		if arch != runtime.GOARCH {
			command = slices.Insert(command, 0, architectures[arch].qemu)
		}
		if got := do(t, dir, command[0], command[1:]...); p == "sluice" && !strings.Contains(got, "v"+r.version+" (commit "+r.commit+", ") {
			t.Errorf("--version prints %q", got)
		}
	}
}

// checkArchitectures unpacks the archives and packages: their names, what they say of themselves
// and the programs in them are of the same architecture.
func checkArchitectures(t *testing.T, r *release) {
	for _, arch := range r.arches {
		dir, rpmArch := t.TempDir(), architectures[arch].rpm
		archive := fmt.Sprintf("sluice-%s-linux-%s", r.version, arch)
		do(t, dir, "tar", "-xzf", filepath.Join(r.out, archive+".tar.gz"))
		checkPrograms(t, r, arch, filepath.Join(dir, archive))

		deb := filepath.Join(r.out, fmt.Sprintf("sluice_%s-1_%s.deb", r.version, arch))
		do(t, dir, "dpkg-deb", "--extract", deb, "deb")
		checkPrograms(t, r, arch, filepath.Join(dir, "deb", sbin))
		if got := do(t, dir, "dpkg-deb", "--field", deb, "Architecture"); strings.TrimSpace(got) != arch {
			t.Errorf("%s says that it is for %s", deb, got)
		}

		rpm := filepath.Join(r.out, fmt.Sprintf("sluice-%s-1.%s.rpm", r.version, rpmArch))
		do(t, dir, "sh", "-c", `mkdir rpm && rpm2archive --nocompression - <"$1" | tar -xC rpm`, "sh", rpm)
		checkPrograms(t, r, arch, filepath.Join(dir, "rpm", sbin))
		if got := do(t, dir, "rpm", "--query", "--package", "--queryformat", "%{ARCH}", rpm); got != rpmArch {
			t.Errorf("%s says that it is for %s", rpm, got)
		}
		checkRequirements(t, rpm)
	}
}

// checkRequirements checks that every distribution has what an RPM package asks for: a shell, which
// bash provides as /bin/sh, and features of rpm itself. Its own configuration the package provides.
func checkRequirements(t *testing.T, rpm string) {
	t.Helper()
	provided := do(t, "/", "rpm", "--query", "--package", "--provides", rpm)
	for line := range strings.Lines(do(t, "/", "rpm", "--query", "--package", "--requires", rpm)) {
		line = strings.TrimSpace(line)
		if line != "/bin/sh" && !strings.HasPrefix(line, "rpmlib(") && !strings.Contains(provided, line+"\n") {
			t.Errorf("%s requires %s", rpm, line)
		}
	}
}

// programFolder is where the checkout's programs are built: by `make test`, or here.
func programFolder(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("SLUICE_PROGRAMS"); dir != "" {
		return dir
	}
	do(t, "..", "make", "build")
	dir, err := filepath.Abs("../bin")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// checkChart has Helm read the packed chart, and compares it with the one for registries.
func checkChart(t *testing.T, r *release) {
	packed := filepath.Join(r.out, "sluice-"+r.version+".tgz")
	tools := strings.Fields(do(t, "..", filepath.Join(programFolder(t), "sluice-lab"), "lab", "build", "--tools")) // of which those with helm come last
	out := do(t, "/", filepath.Join(tools[len(tools)-1], "helm"), "template", packed, "--set", "kubernetes.host=10.0.0.10")
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
