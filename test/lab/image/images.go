package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"sync"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// Images are container images in archives, which stay open and have to stay as they are. Its
// methods are safe for concurrent use.
type Images struct {
	mu       sync.RWMutex
	archives []*os.File
	tagged   []tagged // a later one takes the place of an earlier one of the same name
	blobs    map[digest.Digest]blob
}

// tagged is a name of an image, or of a list of images for several platforms.
type tagged struct {
	repository string // with its registry, as docker.io/library/nginx
	tag        string // "" if it has a digest alone
	manifest   digest.Digest
}

// A blob is what registries hand out by digest.
type blob struct {
	*io.SectionReader
	mediaType string // of a manifest; a config or a layer has none here
}

// Open reads archives, each as Load does. None is right, too.
func Open(archives ...string) (*Images, error) {
	i := &Images{blobs: map[digest.Digest]blob{}}
	for _, name := range archives {
		if err := i.Load(name); err != nil {
			return nil, errors.Join(err, i.Close())
		}
	}
	return i, nil
}

// Close closes the archives.
func (i *Images) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	var errs []error
	for _, f := range i.archives {
		errs = append(errs, f.Close())
	}
	i.archives = nil
	return errors.Join(errs...)
}

// Names returns the whole names of all images, as docker.io/library/nginx:latest, in order.
func (i *Images) Names() []string {
	i.mu.RLock()
	defer i.mu.RUnlock()
	var names []string
	for _, t := range i.tagged {
		if t.tag == "" {
			names = append(names, t.repository+"@"+t.manifest.String())
		} else {
			names = append(names, t.repository+":"+t.tag)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Load adds the images of an archive as `docker save`, `podman save` and `ctr images export` write
// it: an OCI layout, or Docker's own format. Layers may be compressed, the archive itself may not.
// Either all of its images are there afterwards, or none.
func (i *Images) Load(archive string) (err error) {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("load images: %w", err)
	}
	r, err := scan(f)
	if err == nil {
		err = r.load()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("load images from %s: %w", archive, err), f.Close())
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.archives = append(i.archives, f)
	i.tagged = append(i.tagged, r.tagged...)
	for d, b := range r.blobs {
		i.blobs[d] = b
	}
	return nil
}

// find returns the manifest that a reference means, in a repository if it is a tag. Of a repository
// that does not have the tag, it is the newest, which is the one that was added last.
func (i *Images) find(repository, ref string) (digest.Digest, blob, bool) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	d := digest.Digest(ref)
	if d.Validate() != nil {
		d = ""
		for _, t := range slices.Backward(i.tagged) {
			if t.repository == repository && (t.tag == ref || d == "") {
				d = t.manifest
				if t.tag == ref {
					break
				}
			}
		}
	}
	b := i.blobs[d]
	return d, b, b.mediaType != ""
}

// blob returns what has the digest.
func (i *Images) blob(d digest.Digest) (blob, bool) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	b, ok := i.blobs[d]
	return b, ok
}

// reading is an archive that is being read: its files, and what was found in it.
type reading struct {
	files  map[string]*io.SectionReader
	links  map[string]string // of a file to another
	tagged []tagged
	blobs  map[digest.Digest]blob
}

// scan finds the files of an archive.
func scan(f *os.File) (*reading, error) {
	r := &reading{files: map[string]*io.SectionReader{}, links: map[string]string{}, blobs: map[digest.Digest]blob{}}
	if how := compression(f); how != "" {
		return nil, fmt.Errorf("it is compressed, and has to be read from any place: unpack it first, with %s -d", how)
	}
	entries := tar.NewReader(f)
	for {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return r, nil
		}
		if errors.Is(err, tar.ErrHeader) {
			return nil, errors.New("it is no tar archive: " + howTo)
		}
		if err != nil {
			return nil, fmt.Errorf("the archive is damaged: %w", err)
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			at, err := f.Seek(0, io.SeekCurrent) // the reader of the archive reads no further than it has to
			if err != nil {
				return nil, err
			}
			r.files[name] = io.NewSectionReader(f, at, h.Size)
		case tar.TypeSymlink:
			r.links[name] = path.Join(path.Dir(name), h.Linkname)
		case tar.TypeLink:
			r.links[name] = path.Clean(h.Linkname)
		}
	}
}

const howTo = "make an archive with `docker save -o FILE NAME`"

// compression returns the program that compressed a file, or "".
func compression(f io.ReaderAt) string {
	head := make([]byte, 4)
	_, _ = f.ReadAt(head, 0) // what is shorter is neither
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return "gzip"
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return "zstd"
	}
	return ""
}

// file returns a file of the archive, also by way of a link.
func (r *reading) file(name string) (*io.SectionReader, error) {
	name = path.Clean(name)
	if to, ok := r.links[name]; ok {
		name = to
	}
	f, ok := r.files[name]
	if !ok {
		return nil, fmt.Errorf("the archive is incomplete: it has no %s", name)
	}
	return f, nil
}

// maxJSON is far above what manifests and configs are.
const maxJSON = 4 << 20

// json reads a file of the archive.
func (r *reading) json(name string, v any) error {
	f, err := r.file(name)
	if err != nil {
		return err
	}
	return decode(name, f, v)
}

// blobJSON reads a blob, which has to be what its name says.
func (r *reading) blobJSON(d digest.Digest, v any) error {
	b, ok := r.blobs[d]
	if !ok {
		return fmt.Errorf("the archive is incomplete: it has no %s", blobPath(d))
	}
	if sum, err := digest.FromReader(io.NewSectionReader(b, 0, b.Size())); err != nil || sum != d {
		return errors.Join(fmt.Errorf("the archive is damaged: %s has the digest %s", blobPath(d), sum), err)
	}
	return decode(blobPath(d), b.SectionReader, v)
}

func decode(name string, f *io.SectionReader, v any) error {
	if f.Size() > maxJSON {
		return fmt.Errorf("%s has %d bytes: this is no image", name, f.Size())
	}
	data, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// tag records a name of a manifest.
func (r *reading) tag(name string, manifest digest.Digest) error {
	repository, tag, err := parse(name)
	if err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	r.tagged = append(r.tagged, tagged{repository, tag, manifest})
	return nil
}

// parse returns the parts of an image's name, of which Docker's users leave out the first and the
// last. One that has a digest needs no tag.
func parse(name string) (repository, tag string, err error) {
	named, err := reference.ParseDockerRef(name)
	if err != nil {
		return "", "", err
	}
	if t, ok := named.(reference.Tagged); ok {
		tag = t.Tag()
	}
	return named.Name(), tag, nil
}
