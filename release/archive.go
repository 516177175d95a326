package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
)

// entry is a file of an archive.
type entry struct {
	name string // in the archive
	from string // on disk
	mode int64
}

// archive makes a gzipped tar archive of files and the folders that they are in. What it contains
// belongs to root and is of one time, so that equal files make equal archives.
func archive(entries []entry, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if err := writeTar(tar.NewWriter(z), entries, at); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// folder returns all files of a folder, to be under a name in the archive; ".": at its top.
func folder(from, under string) (entries []entry, err error) {
	err = filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(from, path)
		entries = append(entries, entry{filepath.Join(under, rel), path, 0o644})
		return err
	})
	return entries, err
}

func writeTar(w *tar.Writer, entries []entry, at time.Time) error {
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	made := map[string]bool{".": true}
	for _, e := range entries {
		var folders []string
		for d := path.Dir(e.name); !made[d]; d = path.Dir(d) {
			made[d] = true
			folders = append(folders, d)
		}
		for _, d := range slices.Backward(folders) {
			h := &tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o755, ModTime: at, Format: tar.FormatUSTAR}
			if err := w.WriteHeader(h); err != nil {
				return err
			}
		}
		text, err := os.ReadFile(e.from)
		if err != nil {
			return fmt.Errorf("archive %s: %w", e.name, err)
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Size: int64(len(text)), ModTime: at, Format: tar.FormatUSTAR}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	return w.Close()
}
