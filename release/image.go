package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/oci"
	"sigs.k8s.io/yaml"
)

const (
	chartDir = "deploy/helm/sluice"
	// Media types of charts in registries, by https://helm.sh/docs/topics/registries/.
	chartConfig  = "application/vnd.cncf.helm.config.v1+json"
	chartContent = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// image writes the container image of all architectures as an OCI layout, in the folder image and
// as one file.
func (r *release) image() error {
	layout := filepath.Join(r.out, "image")
	store, err := oci.New(layout)
	if err != nil {
		return err
	}
	// What goes through the store is listed in index.json, and podman loads no file that lists
	// several: blobs and the architectures' manifests go past it.
	blobs, err := oci.NewStorage(layout)
	if err != nil {
		return err
	}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Annotations: r.annotations()}
	for _, arch := range r.arches {
		manifest, err := r.imageOf(blobs, arch)
		if err != nil {
			return fmt.Errorf("build the image for %s: %w", arch, err)
		}
		index.Manifests = append(index.Manifests, manifest)
	}
	if err := r.tag(store, ocispec.MediaTypeImageIndex, index); err != nil {
		return err
	}
	return r.layoutFile("image")
}

// imageOf adds the image of an architecture: the programs and their licenses, and nothing else.
func (r *release) imageOf(store content.Pusher, arch string) (ocispec.Descriptor, error) {
	var entries []entry
	for _, p := range programs {
		entries = append(entries, entry{"usr/local/bin/" + p, r.binary(arch, p), 0o755})
	}
	entries = append(entries, entry{"licenses/LICENSE", filepath.Join(r.root, "LICENSE"), 0o644}, entry{"licenses/LICENSES", r.notices(), 0o644})
	var plain bytes.Buffer
	if err := writeTar(tar.NewWriter(&plain), entries, r.time); err != nil {
		return ocispec.Descriptor{}, err
	}
	packed, err := archive(entries, r.time)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	layer, err := push(store, ocispec.MediaTypeImageLayerGzip, packed)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	platform := ocispec.Platform{OS: "linux", Architecture: arch}
	config, err := pushJSON(store, ocispec.MediaTypeImageConfig, ocispec.Image{
		Created: &r.time, Platform: platform,
		Config: ocispec.ImageConfig{
			Env: []string{"PATH=/usr/local/bin"}, Entrypoint: []string{"/usr/local/bin/sluice"}, Cmd: []string{"help"}, Labels: r.annotations(),
		},
		RootFS:  ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(plain.Bytes())}},
		History: []ocispec.History{{Created: &r.time, CreatedBy: "make image"}},
	})
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	manifest, err := pushJSON(store, ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: config, Layers: []ocispec.Descriptor{layer}, Annotations: r.annotations(),
	})
	manifest.Platform = &platform
	return manifest, err
}

// chart writes the Helm chart, as a file and as an OCI layout, which registries take.
func (r *release) chart() error {
	from := filepath.Join(r.root, chartDir)
	entries, err := folder(from, "sluice")
	if err != nil {
		return err
	}
	packed, err := archive(entries, r.time)
	if err != nil {
		return err
	}
	if err := r.write(fmt.Sprintf("sluice-%s.tgz", r.version), packed); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(from, "Chart.yaml"))
	if err != nil {
		return err
	}
	meta, err := yaml.YAMLToJSON(text)
	if err != nil {
		return fmt.Errorf("read Chart.yaml: %w", err)
	}
	store, err := oci.New(filepath.Join(r.out, "chart"))
	if err != nil {
		return err
	}
	config, err := push(store, chartConfig, meta)
	if err != nil {
		return err
	}
	layer, err := push(store, chartContent, packed)
	if err != nil {
		return err
	}
	return r.tag(store, ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: config, Layers: []ocispec.Descriptor{layer}, Annotations: r.annotations(),
	})
}

// annotations are those of https://github.com/opencontainers/image-spec/blob/main/annotations.md.
func (r *release) annotations() map[string]string {
	return map[string]string{
		ocispec.AnnotationTitle: "sluice", ocispec.AnnotationVersion: r.version, ocispec.AnnotationLicenses: "Apache-2.0",
		ocispec.AnnotationURL: homepage, ocispec.AnnotationCreated: r.time.Format(time.RFC3339),
	}
}

// tag adds a manifest under the release's version.
func (r *release) tag(store *oci.Store, mediaType string, manifest any) error {
	d, err := pushJSON(store, mediaType, manifest)
	if err != nil {
		return err
	}
	// Under this name docker and containerd keep what they load.
	d.Annotations = map[string]string{"io.containerd.image.name": r.repository + ":" + r.version}
	if err := store.Tag(context.Background(), d, r.version); err != nil {
		return fmt.Errorf("tag %s: %w", r.version, err)
	}
	return nil
}

func pushJSON(store content.Pusher, mediaType string, v any) (ocispec.Descriptor, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return push(store, mediaType, text)
}

// push adds a blob that is not there yet.
func push(store content.Pusher, mediaType string, text []byte) (ocispec.Descriptor, error) {
	d, err := oras.PushBytes(context.Background(), store, mediaType, text)
	if err != nil {
		return d, fmt.Errorf("add to the OCI layout: %w", err)
	}
	return d, nil
}

// layoutFile puts a layout into one file, which `docker load`, `podman load` and `ctr images
// import` read.
func (r *release) layoutFile(layout string) error {
	entries, err := folder(filepath.Join(r.out, layout), ".")
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := writeTar(tar.NewWriter(&out), entries, r.time); err != nil {
		return err
	}
	return r.write(fmt.Sprintf("sluice-%s-%s.tar", r.version, layout), out.Bytes())
}
