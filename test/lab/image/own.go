package image

import (
	"archive/tar"
	"debug/elf"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// AgentEntrypoint is the entrypoint of an image of agents.
const AgentEntrypoint = "/usr/local/bin/sluice"

// AgentPrograms are the programs of an image of agents, for WriteOwn: sluice, and those beside it.
func AgentPrograms(sluice string) map[string]string {
	programs := map[string]string{}
	for _, name := range []string{"sluice", "sluice-bgp", "sluice-cni"} {
		programs["usr/local/bin/"+name] = filepath.Join(filepath.Dir(sluice), name)
	}
	return programs
}

// WriteOwn writes an archive with one image of the given name: static programs, by their paths in
// the image without the first slash, of which one is its entrypoint. It replaces the archive.
func WriteOwn(archive, name, entrypoint string, programs map[string]string) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(archive), "image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	p := newPacking(dir)
	defer p.close()
	err = p.addLayer("programs", func(w *tar.Writer) error {
		for _, path := range slices.Sorted(maps.Keys(programs)) {
			if err := static(programs[path]); err != nil {
				return err
			}
			data, err := os.ReadFile(programs[path])
			if err != nil {
				return err
			}
			if err := w.WriteHeader(&tar.Header{Name: path, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(data)), ModTime: epoch, Format: tar.FormatGNU}); err != nil {
				return err
			}
			if _, err := w.Write(data); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = p.addImage(image{name, []string{"programs"}, ocispec.ImageConfig{Env: []string{"PATH=/usr/local/bin"}, Entrypoint: []string{entrypoint}}})
	}
	if err != nil {
		return err
	}
	return p.save(archive)
}

// static refuses a program that needs libraries, which the image does not have.
func static(program string) error {
	f, err := elf.Open(program)
	if err != nil {
		return fmt.Errorf("read %s: %w", program, err)
	}
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return fmt.Errorf("%s cannot run in a container: it is linked dynamically; build it with CGO_ENABLED=0", program)
	}
	return nil
}

// Has reports whether a registry of these images has an image of this name: of this digest, if it
// has one, or else under any tag.
func (i *Images) Has(name string) bool {
	named, err := reference.ParseDockerRef(name)
	if err != nil {
		return false
	}
	ref := ""
	switch r := named.(type) {
	case reference.Digested:
		ref = r.Digest().String()
	case reference.Tagged:
		ref = r.Tag()
	}
	_, _, ok := i.find(named.Name(), ref)
	return ok
}
