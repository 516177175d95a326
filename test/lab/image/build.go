package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"sluice.dev/sluice/test/lab/build"
)

// archiveName is that of the archive in its folder of the cache.
const archiveName = "images.tar"

// Build returns an archive with the lab's images, which Open reads, and which `ctr images import`
// takes: an OCI layout with each image's whole name. It is below the user's cache folder, and is
// made if it is missing: that takes a minute, and some more for the programs, and needs a checkout,
// the Go toolchain and mmdebstrap. Outside a checkout Build returns the last archive. say, which
// may be nil, reports progress. Processes that build at the same time wait for each other.
func Build(ctx context.Context, say func(string)) (archive string, err error) {
	src, err := build.Modules()
	if err != nil {
		if dir := build.Newest("images", archiveName); dir != "" {
			return filepath.Join(dir, archiveName), nil
		}
		return "", err
	}
	of, err := programs.Key(src)
	if err != nil {
		return "", fmt.Errorf("build container images: %w", err)
	}
	dir, release, err := build.Folder(ctx, "images", key(of))
	if err != nil {
		return "", fmt.Errorf("build container images: %w", err)
	}
	defer release()
	archive = filepath.Join(dir, archiveName)
	if _, err := os.Stat(archive); err == nil {
		return archive, nil // what exists is complete
	}
	if say == nil {
		say = func(string) {}
	}
	from := sources{}
	if from.bin, err = programs.Build(ctx, say); err != nil {
		return "", fmt.Errorf("build container images: %w", err)
	}
	if from.kubernetes, err = build.Required(ctx, src, "kube", "k8s.io/kubernetes"); err != nil {
		return "", fmt.Errorf("build container images: %w", err)
	}
	say(fmt.Sprintf("building %d container images, once; that takes a minute", len(images)))
	if err := makeArchive(ctx, archive, from); err != nil {
		return "", fmt.Errorf("build container images: %w", err)
	}
	return archive, nil
}

// Programs returns the folder with the Go programs of the images, as build.Set's Build does.
func Programs(ctx context.Context, say func(string)) (bin string, err error) {
	return programs.Build(ctx, say)
}

// key changes with everything that goes into the images. Debian's packages are the newest of the
// day that the archive is made.
func key(programs string) string {
	h := sha256.New()
	fmt.Fprintln(h, programs, runtime.GOARCH, images, mergedUsr, leftOut)
	fmt.Fprintln(h, unpackedLayers, layers) // maps are printed in order
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// makeArchive makes the archive. A file of its name is complete.
func makeArchive(ctx context.Context, archive string, from sources) (err error) {
	dir := filepath.Join(filepath.Dir(archive), "layers")
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil { // of a build that was killed
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	p := newPacking(dir)
	defer p.close()
	for _, name := range slices.Sorted(maps.Keys(unpackedLayers)) {
		if err := p.addLayer(name, func(w *tar.Writer) error { return unpackedLayers[name].write(ctx, w) }); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(layers)) {
		if err := p.addLayer(name, func(w *tar.Writer) error { return layers[name].write(w, from) }); err != nil {
			return err
		}
	}
	for _, i := range images {
		if err := p.addImage(i); err != nil {
			return err
		}
	}
	return p.save(archive)
}
