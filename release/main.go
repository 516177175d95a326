// Release builds what a release of Sluice consists of: archives, Debian and RPM packages, the
// container image and the Helm chart as OCI layouts, a bill of materials, and checksums.
//
// Two builds of one commit give the same files: the version is the chart's, and all times are those
// of the commit.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"sigs.k8s.io/yaml"
)

// programs are those that a release has, by their names in cmd.
var programs = []string{"sluice", "sluice-bgp", "sluice-cni"}

// release is one version of Sluice, as it is built.
type release struct {
	root       string    // the checkout
	out        string    // where the files go
	work       string    // for binaries
	version    string    // "0.2.0"
	commit     string    // "1f0c3b5a9d27"
	repository string    // of the image, as the chart names it
	time       time.Time // of the commit
	arches     []string  // as Go names them
}

func main() {
	log.SetFlags(0)
	var r release
	var arches, changes string
	var image bool
	flag.StringVar(&r.root, "root", "..", "the checkout to build")
	flag.StringVar(&r.out, "out", "", "folder for the files; what is in it is removed")
	flag.StringVar(&arches, "arch", "amd64,arm64", "architectures, parted by commas")
	flag.BoolVar(&image, "image-only", false, "build nothing but the image")
	flag.StringVar(&changes, "changes", "", "build nothing: print the changelog of the version, with links to files below this address")
	flag.Parse()
	r.arches = strings.Split(arches, ",")
	var err error
	if changes != "" {
		err = r.printChanges(context.Background(), changes)
	} else {
		steps := r.all()
		if image {
			steps = []func() error{r.image}
		}
		err = r.build(context.Background(), steps...)
	}
	if err != nil {
		log.Fatalf("release: %v", err)
	}
}

func (r *release) printChanges(ctx context.Context, base string) error {
	if err := r.identify(ctx); err != nil {
		return err
	}
	text, err := r.changes(base)
	if err != nil {
		return err
	}
	_, err = os.Stdout.WriteString(text)
	return err
}

// all are the steps to all files of a release, in their order.
func (r *release) all() []func() error {
	return []func() error{r.archives, r.packages, r.chart, r.image, r.materials, r.checksums}
}

// build compiles the programs, and takes steps with them.
func (r *release) build(ctx context.Context, steps ...func() error) (err error) {
	if r.out == "" || flag.NArg() > 0 {
		return errors.New("say where the files go with -out, and nothing but flags")
	}
	if r.root, err = filepath.Abs(r.root); err != nil {
		return err
	}
	if err := r.identify(ctx); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(r.out), os.MkdirAll(r.out, 0o755)); err != nil {
		return err
	}
	if r.work, err = os.MkdirTemp("", "sluice-release-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.work)) }()
	if err := r.compile(ctx); err != nil {
		return err
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// identify reads which version this is, of when, and what its image is called. All of it has one
// place, the chart.
func (r *release) identify(ctx context.Context) error {
	var meta struct{ Version, AppVersion string }
	var values struct{ Image struct{ Repository string } }
	for name, into := range map[string]any{"Chart.yaml": &meta, "values.yaml": &values} {
		text, err := os.ReadFile(filepath.Join(r.root, chartDir, name))
		if err == nil {
			err = yaml.Unmarshal(text, into)
		}
		if err != nil {
			return fmt.Errorf("read the version: %s: %w", name, err)
		}
	}
	if r.version, r.repository = meta.Version, values.Image.Repository; r.version == "" || meta.AppVersion != r.version {
		return fmt.Errorf("version and appVersion of %s/Chart.yaml are %q and %q: a release has one version", chartDir, meta.Version, meta.AppVersion)
	}
	var err error
	if r.commit, err = output(ctx, r.root, "git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty"); err != nil {
		return err
	}
	seconds, err := output(ctx, r.root, "git", "log", "-1", "--format=%ct")
	if err != nil {
		return err
	}
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("read the commit's time: %w", err)
	}
	r.time = time.Unix(unix, 0).UTC()
	return nil
}

// binary is where a program of an architecture is.
func (r *release) binary(arch, program string) string { return filepath.Join(r.work, arch, program) }

// notices is where the licenses of linked modules are.
func (r *release) notices() string { return filepath.Join(r.work, "LICENSES") }

// compile builds the programs, with the Makefile's flags, and collects the licenses of what they
// are made of.
func (r *release) compile(ctx context.Context) error {
	for _, arch := range r.arches {
		log.Printf("building %s for %s", strings.Join(programs, ", "), arch)
		args := []string{
			"build", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false", "-o", filepath.Join(r.work, arch) + "/",
			"-ldflags", "-s -w -X sluice.dev/sluice/internal/cli.version=v" + r.version + " -X sluice.dev/sluice/internal/cli.commit=" + r.commit,
		}
		for _, p := range programs {
			args = append(args, "./cmd/"+p)
		}
		if err := run(ctx, r.root, []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOFLAGS="}, "go", args...); err != nil {
			return err
		}
	}
	text, err := output(ctx, r.root, "hack/licenses")
	if err != nil {
		return err
	}
	return os.WriteFile(r.notices(), []byte(text+"\n"), 0o644)
}

// files is what archives and packages have of the checkout beside the programs, by the names there.
var files = []string{"LICENSE", "CHANGELOG.md", "README.md"}

// archives writes a tar archive for each architecture.
func (r *release) archives() error {
	for _, arch := range r.arches {
		name := fmt.Sprintf("sluice-%s-linux-%s", r.version, arch)
		var entries []entry
		for _, p := range programs {
			entries = append(entries, entry{name + "/" + p, r.binary(arch, p), 0o755})
		}
		for _, f := range files {
			entries = append(entries, entry{name + "/" + f, filepath.Join(r.root, f), 0o644})
		}
		entries = append(entries, entry{name + "/LICENSES", r.notices(), 0o644})
		systemd, err := folder(filepath.Join(r.root, systemdDir), name+"/systemd")
		if err != nil {
			return err
		}
		entries = append(entries, systemd...)
		text, err := archive(entries, r.time)
		if err != nil {
			return err
		}
		if err := r.write(name+".tar.gz", text); err != nil {
			return err
		}
	}
	return nil
}

// write writes one of the release's files and says so.
func (r *release) write(name string, text []byte) error {
	if err := os.WriteFile(filepath.Join(r.out, name), text, 0o644); err != nil {
		return err
	}
	log.Printf("wrote %s, %.1f MB", name, float64(len(text))/1e6)
	return nil
}

// checksums writes SHA256SUMS, which `sha256sum -c` reads.
func (r *release) checksums() error {
	var lines []string
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			continue // an OCI layout: its files are named by their digests, and all of it is in a tar file, too
		}
		text, err := os.ReadFile(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("%s  %s\n", digest.FromBytes(text).Encoded(), e.Name()))
	}
	slices.Sort(lines)
	return r.write("SHA256SUMS", []byte(strings.Join(lines, "")))
}

// run runs a command in a folder, with further variables.
func run(ctx context.Context, dir string, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, append(os.Environ(), env...), os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, args[0], err)
	}
	return nil
}

// output returns what a command prints.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}
