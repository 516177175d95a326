package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestListIsWhole(t *testing.T) {
	var built, used []string
	for _, p := range programs.Programs {
		built = append(built, p.Name)
	}
	for name, l := range layers {
		for _, f := range l {
			if f.program != "" && !slices.Contains(built, f.program) {
				t.Errorf("layer %s: nothing builds %s", name, f.program)
			}
			if strings.HasPrefix(f.path, "/") || strings.HasSuffix(f.path, "/") {
				t.Errorf("layer %s: %s: want no slash at either end", name, f.path)
			}
		}
	}
	for _, i := range images {
		if repository, tag, err := parse(i.name); err != nil || repository+":"+tag != i.name {
			t.Errorf("%s is no whole name: %v", i.name, err)
		}
		for _, l := range i.layers {
			_, made := layers[l]
			if _, ok := unpackedLayers[l]; !made && !ok {
				t.Errorf("%s: there is no layer %s", i.name, l)
			}
			used = append(used, l)
		}
	}
	for name := range layers {
		if !slices.Contains(used, name) {
			t.Errorf("no image has layer %s", name)
		}
	}
	if a, b := key("1"), key("2"); a == b || a != key("1") {
		t.Errorf("the key is %s with some programs, %s with others, and then %s", a, b, key("1"))
	}
}

// sample packs images of a layer, by their names.
func sample(t *testing.T, names ...string) []byte {
	t.Helper()
	bin := t.TempDir()
	write(t, filepath.Join(bin, "hello"), []byte("a program"))
	p := newPacking(t.TempDir())
	defer p.close()
	l := layer{
		{path: "usr/bin/hello", program: "hello"}, {path: "etc/hello.conf", text: "greeting\n"}, {path: "bin", link: "usr/bin"}, {path: "data"},
	}
	if err := p.addLayer("hello", func(w *tar.Writer) error { return l.write(w, sources{bin: bin}) }); err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		if err := p.addImage(image{name, []string{"hello"}, run("/usr/bin/hello", fmt.Sprint(i))}); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := p.write(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func write(t *testing.T, file string, data []byte) string {
	t.Helper()
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestArchivesOfTheSameFilesAreTheSame(t *testing.T) {
	first := sample(t, "example.org/a:1", "example.org/b:1")
	time.Sleep(10 * time.Millisecond) // files have other times
	if !bytes.Equal(first, sample(t, "example.org/a:1", "example.org/b:1")) {
		t.Error("two archives of the same files differ")
	}
}

func TestLayer(t *testing.T) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := layers["redis"].write(w, sources{}); err != nil {
		t.Fatal(err)
	}
	got := list(t, &out)
	want := []string{"data/ 755 0 0", "usr/local/bin/redis-server 755 0 0"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	err := layer{{path: "a", program: "nothing"}}.write(w, sources{bin: t.TempDir()})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a program that is missing: %v", err)
	}
}

// list returns name, mode, owner and time of the files of an archive.
func list(t *testing.T, from io.Reader) (files []string) {
	t.Helper()
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, strings.TrimSpace(fmt.Sprintf("%s %o %d%s %d", h.Name, h.Mode, h.Uid, h.Uname, h.ModTime.Unix())))
	}
}

func TestCopyFiles(t *testing.T) {
	var in, out bytes.Buffer
	w := tar.NewWriter(&in)
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755},
		{Typeflag: tar.TypeDir, Name: "./dev/", Mode: 0o755},
		{Typeflag: tar.TypeChar, Name: "./dev/null", Mode: 0o666},
		{Typeflag: tar.TypeDir, Name: "./tmp/", Mode: 0o1777, ModTime: time.Unix(5, 0)},
		{Typeflag: tar.TypeReg, Name: "./usr/bin/perl", Mode: 0o755},
		{Typeflag: tar.TypeReg, Name: "./usr/bin/wall", Mode: 0o2755, Gid: 5, Uid: 1, Gname: "tty", Uname: "daemon", Size: 2},
		{Typeflag: tar.TypeReg, Name: "./usr/lib/arch/perl5/x", Mode: 0o644},
		{Typeflag: tar.TypeReg, Name: "./usr/lib/arch/libc.so.6", Mode: 0o755},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	to := tar.NewWriter(&out)
	if err := copyFiles(to, &in, ""); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	got := list(t, &out)
	want := []string{"dev/ 755 0 0", "tmp/ 1777 0 0", "usr/bin/wall 2755 1 0", "usr/lib/arch/libc.so.6 755 0 0"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := copyFiles(to, strings.NewReader(strings.Repeat("no archive ", 100)), ""); err == nil {
		t.Error("what is no archive was copied")
	}
}
