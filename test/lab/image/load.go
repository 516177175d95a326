package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// manifestFile is where Docker's own format has its list of images.
const manifestFile = "manifest.json"

// Docker has names of its own for what OCI standardized.
const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// load finds the images of the archive. Many have both formats; the OCI layout is preferred, if it
// has names, as its manifests have the digests that registries know.
func (r *reading) load() error {
	_, layout := r.files[ocispec.ImageIndexFile]
	_, docker := r.files[manifestFile]
	if !layout && !docker {
		return fmt.Errorf("it has no images: there is neither %s nor %s in it; %s", ocispec.ImageIndexFile, manifestFile, howTo)
	}
	if layout {
		if err := r.loadLayout(); err != nil {
			return err
		}
	}
	if docker && len(r.tagged) == 0 {
		if err := r.loadDocker(); err != nil {
			return err
		}
	}
	if len(r.tagged) == 0 {
		return errors.New("its images have no names: save them by name, not by ID, as in `docker save -o FILE NAME`")
	}
	return nil
}

func (r *reading) loadLayout() error {
	for name, f := range r.files {
		algorithm, hex, ok := strings.Cut(strings.TrimPrefix(name, ocispec.ImageBlobsDir+"/"), "/")
		if d := digest.NewDigestFromEncoded(digest.Algorithm(algorithm), hex); ok && d.Validate() == nil {
			r.blobs[d] = blob{SectionReader: f}
		}
	}
	var index ocispec.Index
	if err := r.json(ocispec.ImageIndexFile, &index); err != nil {
		return err
	}
	for _, d := range index.Manifests {
		name := d.Annotations[nameAnnotation]
		if ref := d.Annotations[ocispec.AnnotationRefName]; name == "" && strings.ContainsAny(ref, ":/") {
			name = ref // others have a mere tag there
		}
		if name == "" {
			continue
		}
		found, err := r.addManifest(d)
		if err != nil {
			return fmt.Errorf("image %s: %w", name, err)
		}
		if !found {
			return fmt.Errorf("image %s: the archive does not have it for linux/%s; save it on such a machine, or pull it with --platform before", name, runtime.GOARCH)
		}
		if err := r.tag(name, d.Digest); err != nil {
			return err
		}
	}
	return nil
}

// addManifest adds the manifest of a descriptor, with those that it lists. It reports whether an
// image for this machine is among them, which is then complete.
func (r *reading) addManifest(d ocispec.Descriptor) (found bool, err error) {
	b, ok := r.blobs[d.Digest]
	if !ok {
		return false, nil // archives of one platform keep lists of several
	}
	r.blobs[d.Digest] = blob{b.SectionReader, d.MediaType}
	switch d.MediaType {
	case ocispec.MediaTypeImageIndex, dockerList:
		var list ocispec.Index
		if err := r.blobJSON(d.Digest, &list); err != nil {
			return false, err
		}
		for _, child := range list.Manifests {
			ours, err := r.addManifest(child)
			if err != nil {
				return false, err
			}
			found = found || ours
		}
		return found, nil
	case ocispec.MediaTypeImageManifest, dockerManifest:
		return r.isOurs(d.Digest)
	}
	return false, nil // such as a signature
}

// isOurs reports whether a manifest's image is for this machine.
func (r *reading) isOurs(manifest digest.Digest) (bool, error) {
	var m ocispec.Manifest
	if err := r.blobJSON(manifest, &m); err != nil {
		return false, err
	}
	if _, ok := r.blobs[m.Config.Digest]; !ok {
		return false, nil // as with lists
	}
	var c ocispec.Image
	if err := r.blobJSON(m.Config.Digest, &c); err != nil || c.OS != "linux" || c.Architecture != runtime.GOARCH {
		return false, err
	}
	for _, l := range m.Layers {
		if _, ok := r.blobs[l.Digest]; !ok {
			return false, fmt.Errorf("the archive is incomplete: it has no %s", blobPath(l.Digest))
		}
	}
	return true, nil
}

// loadDocker makes the manifests that Docker's own format lacks.
func (r *reading) loadDocker() error {
	var list []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := r.json(manifestFile, &list); err != nil {
		return err
	}
	known := map[string]ocispec.Descriptor{}
	for _, i := range list {
		m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
		var c ocispec.Image
		if err := r.json(i.Config, &c); err != nil {
			return err
		}
		if c.OS != "linux" || c.Architecture != runtime.GOARCH {
			return fmt.Errorf("image %s is for %s, and this machine is linux/%s; pull it with --platform before it is saved", strings.Join(i.RepoTags, ", "), c.OS+"/"+c.Architecture, runtime.GOARCH)
		}
		var err error
		if m.Config, err = r.addFile(i.Config, ocispec.MediaTypeImageConfig); err != nil {
			return err
		}
		for _, name := range i.Layers {
			if _, ok := known[name]; !ok {
				if known[name], err = r.addFile(name, ocispec.MediaTypeImageLayer); err != nil {
					return err
				}
			}
			m.Layers = append(m.Layers, known[name])
		}
		data, err := json.Marshal(m)
		if err != nil {
			return err
		}
		d := digest.FromBytes(data)
		r.blobs[d] = blob{io.NewSectionReader(bytes.NewReader(data), 0, int64(len(data))), m.MediaType}
		for _, name := range i.RepoTags {
			if err := r.tag(name, d); err != nil {
				return err
			}
		}
	}
	return nil
}

// addFile makes a blob of a file of the archive.
func (r *reading) addFile(name, mediaType string) (ocispec.Descriptor, error) {
	f, err := r.file(name)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	d, err := digest.FromReader(io.NewSectionReader(f, 0, f.Size()))
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("read %s: %w", name, err)
	}
	if how := compression(f); mediaType == ocispec.MediaTypeImageLayer && how != "" {
		mediaType += "+" + how
	}
	r.blobs[d] = blob{SectionReader: f}
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: f.Size()}, nil
}
