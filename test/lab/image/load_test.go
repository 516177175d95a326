package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// files are those of an archive, by path; of one that begins with "->" the rest is what a link
// points to.
type files map[string]string

func (f files) with(path, content string) files {
	f = maps.Clone(f)
	f[path] = content
	return f
}

func (f files) without(path string) files {
	f = maps.Clone(f)
	delete(f, path)
	return f
}

func (f files) tar(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(f)) {
		h := &tar.Header{Name: name, Size: int64(len(f[name])), Mode: 0o644}
		if to, ok := strings.CutPrefix(f[name], "->"); ok {
			h = &tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write([]byte(f[name])); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func compressed(t *testing.T, data string) string {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write([]byte(data)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func config(arch string) string {
	return fmt.Sprintf(`{"os":"linux","architecture":%q}`, arch)
}

// docker is what `docker save` wrote for long: the second image shares a layer by a link.
func docker(t *testing.T) files {
	return files{
		"manifest.json": `[
			{"Config":"one.json","RepoTags":["shop/front:1","front"],"Layers":["a/layer.tar","b/layer.tar"]},
			{"Config":"one.json","RepoTags":["ghcr.io/shop/back:1"],"Layers":["c/layer.tar"]}]`,
		"one.json":    config(runtime.GOARCH),
		"a/layer.tar": "layer a",
		"b/layer.tar": compressed(t, "layer b"),
		"c/layer.tar": "->../a/layer.tar",
	}
}

// layout is an OCI layout of one image, whose name is an annotation.
func layout(annotation, name string) files {
	f := files{"oci-layout": `{"imageLayoutVersion":"1.0.0"}`}
	add := func(mediaType, data string) string {
		d := digest.FromString(data)
		f[blobPath(d)] = data
		return fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d}`, mediaType, d, len(data))
	}
	m := add(ocispec.MediaTypeImageManifest, fmt.Sprintf(`{"schemaVersion":2,"config":%s,"layers":[%s]}`,
		add(ocispec.MediaTypeImageConfig, config(runtime.GOARCH)), add(ocispec.MediaTypeImageLayer, "layer")))
	other := fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":3}`, ocispec.MediaTypeImageManifest, digest.FromString("other"))
	list := add(ocispec.MediaTypeImageIndex, fmt.Sprintf(`{"schemaVersion":2,"manifests":[%s,%s]}`, other, m))
	f["index.json"] = fmt.Sprintf(`{"schemaVersion":2,"manifests":[%s,"annotations":{%q:%q}}]}`, strings.TrimSuffix(list, "}"), annotation, name)
	return f
}

func load(t *testing.T, data []byte) (*Images, error) {
	t.Helper()
	i, err := Open(write(t, filepath.Join(t.TempDir(), "user.tar"), data))
	if err == nil {
		t.Cleanup(func() { _ = i.Close() })
	}
	return i, err
}

func TestLoadDocker(t *testing.T) {
	i, err := load(t, docker(t).tar(t))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := i.Names(), []string{"docker.io/library/front:latest", "docker.io/shop/front:1", "ghcr.io/shop/back:1"}; !slices.Equal(got, want) {
		t.Errorf("the names are %q, want %q", got, want)
	}
	h := i.Handler("")
	var front, back ocispec.Manifest
	decodeBody(t, ask(h, "GET", "/v2/shop/front/manifests/1?ns=docker.io"), &front)
	decodeBody(t, ask(h, "GET", "/v2/shop/back/manifests/1?ns=ghcr.io"), &back)
	if front.Layers[0].MediaType != ocispec.MediaTypeImageLayer || front.Layers[1].MediaType != ocispec.MediaTypeImageLayerGzip {
		t.Errorf("the layers are of types %s and %s", front.Layers[0].MediaType, front.Layers[1].MediaType)
	}
	if back.Layers[0].Digest != front.Layers[0].Digest {
		t.Error("the linked layer is another")
	}
	for _, l := range append(front.Layers, front.Config) {
		w := ask(h, "GET", "/v2/shop/front/blobs/"+l.Digest.String())
		if digest.FromBytes(w.Body.Bytes()) != l.Digest || int64(w.Body.Len()) != l.Size {
			t.Errorf("a blob is %q, want %v", w.Body, l)
		}
	}
}

func TestLoadLayout(t *testing.T) {
	for _, c := range []struct{ about, annotation, name, want string }{
		{"containerd's", nameAnnotation, "docker.io/shop/front:1", "docker.io/shop/front:1"},
		{"podman's", ocispec.AnnotationRefName, "localhost/front:1", "localhost/front:1"},
		{"a short name", ocispec.AnnotationRefName, "front:1", "docker.io/library/front:1"},
	} {
		i, err := load(t, layout(c.annotation, c.name).tar(t))
		if err != nil {
			t.Errorf("%s: %v", c.about, err)
			continue
		}
		if got := i.Names(); !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s: the names are %q, want %s", c.about, got, c.want)
		}
		repository, tag, _ := strings.Cut(c.want, ":")
		var index ocispec.Index
		decodeBody(t, ask(i.Handler(""), "GET", "/v2/"+repository+"/manifests/"+tag), &index)
		ours := index.Manifests[1]
		if w := ask(i.Handler(""), "GET", "/v2/"+repository+"/manifests/"+ours.Digest.String()); w.Header().Get("Content-Type") != ours.MediaType {
			t.Errorf("%s: the image of this platform: %d %s", c.about, w.Code, w.Body)
		}
	}
}

func TestLoadPrefersWhatHasNames(t *testing.T) {
	both := docker(t)
	maps.Copy(both, layout(ocispec.AnnotationRefName, "1"))
	i, err := load(t, both.tar(t))
	if err != nil || len(i.Names()) != 3 {
		t.Errorf("a layout with tags alone, and Docker's format: %v %v", i, err)
	}
}

func TestLoadOfDigest(t *testing.T) {
	name := "docker.io/shop/front@" + digest.FromString("").String()
	i, err := load(t, layout(nameAnnotation, name).tar(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := i.Names(); len(got) != 1 || !strings.HasPrefix(got[0], "docker.io/shop/front@sha256:") {
		t.Errorf("the names are %q", got)
	}
}

func TestLoadRefuses(t *testing.T) {
	good := layout(nameAnnotation, "front:1")
	without := func(part string) []byte {
		for name, data := range good {
			if strings.HasPrefix(name, "blobs/") && strings.Contains(data, part) && !strings.Contains(data, "digest") {
				return good.without(name).tar(t)
			}
		}
		t.Fatalf("there is no %s", part)
		return nil
	}
	damaged := good
	for name, data := range good {
		if strings.Contains(data, `"layers"`) {
			damaged = good.with(name, data+" ")
		}
	}
	docker := docker(t)
	for _, c := range []struct {
		about string
		data  []byte
		want  string
	}{
		{"a text", []byte(strings.Repeat("This is no archive. ", 60)), "no tar archive: make an archive with `docker save"},
		{"nothing", nil, "it has no images"},
		{"a compressed archive", []byte(compressed(t, string(docker.tar(t)))), "unpack it first, with gzip -d"},
		{"another archive", files{"README": "hello"}.tar(t), "neither index.json nor manifest.json"},
		{"an archive that was cut off", good.tar(t)[:1300], "the archive is damaged"},
		{"no names, in a layout", layout(ocispec.AnnotationRefName, "1").tar(t), "no names: save them by name"},
		{"no names, of Docker", docker.with("manifest.json", `[{"Config":"one.json","Layers":["a/layer.tar"]}]`).tar(t), "no names: save them by name"},
		{"a name that is none", layout(nameAnnotation, "UPPER:1").tar(t), "image UPPER:1: "},
		{"an index that is no JSON", good.with("index.json", "{").tar(t), "read index.json: "},
		{"a list that is no JSON", docker.with("manifest.json", "{").tar(t), "read manifest.json: "},
		{"no layer, in a layout", without("layer"), "the archive is incomplete: it has no blobs/sha256/"},
		{"no config, in a layout", without("architecture"), "does not have it for linux/" + runtime.GOARCH},
		{"a manifest that is another", damaged.tar(t), "the archive is damaged: blobs/sha256/"},
		{"no layer, of Docker", docker.without("b/layer.tar").tar(t), "the archive is incomplete: it has no b/layer.tar"},
		{"a link to nothing", docker.without("a/layer.tar").tar(t), "the archive is incomplete: it has no a/layer.tar"},
		{"no config, of Docker", docker.without("one.json").tar(t), "the archive is incomplete: it has no one.json"},
		{"another machine's", docker.with("one.json", config("s390x")).tar(t), "is for linux/s390x, and this machine is linux/" + runtime.GOARCH},
		{"a config of many bytes", docker.with("one.json", strings.Repeat(" ", maxJSON+1)).tar(t), "this is no image"},
	} {
		i, err := load(t, c.data)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "user.tar") {
			t.Errorf("%s: got %v, %v; want an error with %q", c.about, i, err, c.want)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "nothing.tar")); err == nil {
		t.Error("a file that does not exist was opened")
	}
}

func TestLoadLeavesNothingOfWhatItRefuses(t *testing.T) {
	i := served(t, []string{"example.org/a:1"})
	bad := docker(t).without("c/layer.tar")
	if err := i.Load(write(t, filepath.Join(t.TempDir(), "bad.tar"), bad.tar(t))); err == nil {
		t.Fatal("it was loaded")
	}
	if got := i.Names(); !slices.Equal(got, []string{"example.org/a:1"}) {
		t.Errorf("the names are %q", got)
	}
	if err := i.Load(write(t, filepath.Join(t.TempDir(), "good.tar"), docker(t).tar(t))); err != nil || len(i.Names()) != 4 {
		t.Errorf("after another archive the names are %q: %v", i.Names(), err)
	}
}
