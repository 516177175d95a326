package image

import (
	"archive/tar"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// nameAnnotation is where containerd and others look for an image's whole name in an archive.
const nameAnnotation = "io.containerd.image.name"

// Archives of the same files are the same.
var epoch = time.Unix(0, 0)

// run says how an image's program is started: entry is its entrypoint, "" for none.
func run(entry string, cmd ...string) ocispec.ImageConfig {
	return ocispec.ImageConfig{Env: []string{"PATH=" + searchPath}, Entrypoint: strings.Fields(entry), Cmd: cmd}
}

func in(dir string, c ocispec.ImageConfig) ocispec.ImageConfig {
	c.WorkingDir = dir
	return c
}

// sources are where the files of layers come from.
type sources struct {
	bin        string // the folder of the programs
	kubernetes string // of the module k8s.io/kubernetes
}

// write writes the files, by path.
func (l layer) write(w *tar.Writer, from sources) error {
	for _, f := range slices.SortedFunc(slices.Values(l), func(a, b file) int { return cmp.Compare(a.path, b.path) }) {
		h := &tar.Header{Name: f.path, Typeflag: tar.TypeReg, Mode: 0o644, ModTime: epoch, Format: tar.FormatGNU}
		data, err := []byte(f.text), error(nil)
		switch {
		case f.link != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.link, 0o777
		case f.program != "":
			h.Mode = 0o755
			data, err = os.ReadFile(filepath.Join(from.bin, f.program))
		case f.source != "":
			data, err = os.ReadFile(filepath.Join(from.kubernetes, f.source))
		case f.text == "":
			h.Typeflag, h.Name, h.Mode = tar.TypeDir, f.path+"/", 0o755
		}
		if err != nil {
			return err
		}
		if f.mode != 0 {
			h.Mode = f.mode
		}
		h.Size = int64(len(data))
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	return nil
}

// packing makes an archive. Layers, which are large, wait in files of a folder.
type packing struct {
	dir    string
	layers map[string]ocispec.Descriptor
	blobs  map[digest.Digest]io.ReadSeeker
	index  ocispec.Index
}

func newPacking(dir string) *packing {
	return &packing{
		dir: dir, layers: map[string]ocispec.Descriptor{}, blobs: map[digest.Digest]io.ReadSeeker{},
		index: ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex},
	}
}

// addLayer adds what write writes, under a name that images are to refer to.
func (p *packing) addLayer(name string, write func(*tar.Writer) error) (err error) {
	f, err := os.Create(filepath.Join(p.dir, name))
	if err != nil {
		return err
	}
	sum := digest.SHA256.Digester()
	w := tar.NewWriter(io.MultiWriter(f, sum.Hash()))
	if err := write(w); err != nil {
		return fmt.Errorf("layer %s: %w", name, err)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("layer %s: %w", name, err)
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	p.layers[name] = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: sum.Digest(), Size: size}
	p.blobs[sum.Digest()] = f
	return nil
}

// addImage adds an image of layers that were added before.
func (p *packing) addImage(i image) error {
	c := ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
		Config:   i.config, RootFS: ocispec.RootFS{Type: "layers"},
	}
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	for _, name := range i.layers {
		l, ok := p.layers[name]
		if !ok {
			return fmt.Errorf("image %s: there is no layer %s", i.name, name)
		}
		m.Layers = append(m.Layers, l)
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, l.Digest)
	}
	var err error
	if m.Config, err = p.addJSON(ocispec.MediaTypeImageConfig, c); err != nil {
		return err
	}
	d, err := p.addJSON(ocispec.MediaTypeImageManifest, m)
	if err != nil {
		return err
	}
	d.Platform = &c.Platform
	d.Annotations = map[string]string{nameAnnotation: i.name, ocispec.AnnotationRefName: i.name[strings.LastIndex(i.name, ":")+1:]}
	p.index.Manifests = append(p.index.Manifests, d)
	return nil
}

func (p *packing) addJSON(mediaType string, v any) (ocispec.Descriptor, error) {
	data, err := json.Marshal(v)
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	p.blobs[d.Digest] = strings.NewReader(string(data))
	return d, err
}

// write writes the archive.
func (p *packing) write(to io.Writer) error {
	w := tar.NewWriter(to)
	layout, err := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err != nil {
		return err
	}
	index, err := json.Marshal(p.index)
	if err != nil {
		return err
	}
	add := func(name string, r io.ReadSeeker) error {
		size, err := r.Seek(0, io.SeekEnd)
		if err != nil {
			return err
		}
		if _, err := r.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Size: size, Mode: 0o644, ModTime: epoch, Format: tar.FormatGNU}); err != nil {
			return err
		}
		_, err = io.Copy(w, r)
		return err
	}
	if err := add(ocispec.ImageLayoutFile, strings.NewReader(string(layout))); err != nil {
		return err
	}
	if err := add(ocispec.ImageIndexFile, strings.NewReader(string(index))); err != nil {
		return err
	}
	for _, d := range slices.Sorted(maps.Keys(p.blobs)) {
		if err := add(blobPath(d), p.blobs[d]); err != nil {
			return err
		}
	}
	return w.Close()
}

// save writes the archive to a file. A file of its name is complete.
func (p *packing) save(archive string) error {
	f, err := os.Create(filepath.Join(p.dir, archiveName))
	if err != nil {
		return err
	}
	if err := errors.Join(p.write(f), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), archive)
}

// blobPath is where a layout has a blob.
func blobPath(d digest.Digest) string {
	return ocispec.ImageBlobsDir + "/" + d.Algorithm().String() + "/" + d.Encoded()
}

// close closes the files of layers.
func (p *packing) close() {
	for _, b := range p.blobs {
		if f, ok := b.(*os.File); ok {
			_ = f.Close()
		}
	}
}
