package image

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// served opens archives, one for each list of names.
func served(t *testing.T, archives ...[]string) *Images {
	t.Helper()
	var files []string
	for _, names := range archives {
		files = append(files, write(t, filepath.Join(t.TempDir(), "images.tar"), sample(t, names...)))
	}
	i, err := Open(files...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = i.Close() })
	return i
}

func ask(h http.Handler, method, url string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, url, nil)
	if header != nil {
		r.Header.Set(header[0], header[1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestHandler(t *testing.T) {
	images := served(t,
		[]string{"docker.io/library/web:1", "docker.io/library/web:2", "registry.k8s.io/tools/agent:v1", "docker.io/library/debian:latest"},
		[]string{"docker.io/library/other:1", "docker.io/library/web:1"})
	wantNames := []string{"docker.io/library/debian:latest", "docker.io/library/other:1", "docker.io/library/web:1", "docker.io/library/web:2", "registry.k8s.io/tools/agent:v1"}
	if got := images.Names(); !slices.Equal(got, wantNames) {
		t.Errorf("the names are %q, want %q", got, wantNames)
	}
	for _, c := range []struct {
		about, url, fallback string
		status               int
		want                 string // the argument that sample has given the image
	}{
		{"a name, with the registry", "/v2/library/web/manifests/2?ns=docker.io", "", 200, "1"},
		{"a later archive takes precedence", "/v2/library/web/manifests/1?ns=docker.io", "", 200, "1"},
		{"a name with several slashes", "/v2/tools/agent/manifests/v1?ns=registry.k8s.io", "", 200, "2"},
		{"a name without a registry", "/v2/web/manifests/2", "", 200, "1"},
		{"the registry as a part of the name", "/v2/registry.k8s.io/tools/agent/manifests/v1", "", 200, "2"},
		{"an unknown tag is the last of all", "/v2/library/web/manifests/1.28?ns=docker.io", "", 200, "1"},
		{"an unknown tag needs no fallback", "/v2/tools/agent/manifests/v2?ns=registry.k8s.io", "debian", 200, "2"},
		{"the same name in another registry", "/v2/library/web/manifests/2?ns=quay.io", "", 404, ""},
		{"an unknown name", "/v2/library/nothing/manifests/1?ns=docker.io", "", 404, ""},
		{"an unknown name, and a fallback", "/v2/shop/front/manifests/1?ns=docker.io", "debian", 200, "3"},
		{"a fallback with another tag", "/v2/shop/front/manifests/1?ns=docker.io", "registry.k8s.io/tools/agent:v0", 200, "2"},
		{"a fallback that is unknown", "/v2/shop/front/manifests/1?ns=docker.io", "nothing", 404, ""},
		{"an unknown digest has no fallback", "/v2/library/web/manifests/" + digest.FromString("").String() + "?ns=docker.io", "debian", 404, ""},
		{"no name", "/v2/UPPER/manifests/1?ns=docker.io", "debian", 400, ""},
	} {
		w := ask(images.Handler(c.fallback), "GET", c.url)
		if w.Code != c.status {
			t.Errorf("%s: status %d, want %d: %s", c.about, w.Code, c.status, w.Body)
			continue
		}
		if c.status != 200 {
			continue
		}
		var m ocispec.Manifest
		var config ocispec.Image
		decodeBody(t, w, &m)
		decodeBody(t, ask(images.Handler(""), "GET", "/v2/any/blobs/"+m.Config.Digest.String()), &config)
		if got := config.Config.Cmd[0]; got != c.want {
			t.Errorf("%s: image %s, want %s", c.about, got, c.want)
		}
	}
}

func decodeBody(t *testing.T, w *httptest.ResponseRecorder, v any) {
	t.Helper()
	body, _ := io.ReadAll(w.Body) // of memory
	if d := w.Header().Get("Docker-Content-Digest"); d != digest.FromBytes(body).String() {
		t.Errorf("the header has digest %s, and the body %s", d, digest.FromBytes(body))
	}
	if err := json.Unmarshal(body, v); err != nil {
		t.Fatalf("%v: %d: %s", err, w.Code, body)
	}
}

func TestHandlerSpeaksTheProtocol(t *testing.T) {
	h := served(t, []string{"docker.io/library/web:1"}).Handler("")
	if w := ask(h, "GET", "/v2/"); w.Code != 200 || w.Header().Get("Docker-Distribution-API-Version") != "registry/2.0" {
		t.Errorf("GET /v2/: %d %v", w.Code, w.Header())
	}
	const url = "/v2/library/web/manifests/1?ns=docker.io"
	head, get := ask(h, "HEAD", url), ask(h, "GET", url)
	for _, name := range []string{"Content-Type", "Content-Length", "Docker-Content-Digest"} {
		if a, b := head.Header().Get(name), get.Header().Get(name); a != b || a == "" {
			t.Errorf("%s is %q for HEAD, %q for GET", name, a, b)
		}
	}
	if head.Body.Len() != 0 || get.Header().Get("Content-Type") != ocispec.MediaTypeImageManifest {
		t.Errorf("HEAD has %d bytes, GET type %s", head.Body.Len(), get.Header().Get("Content-Type"))
	}
	byDigest := ask(h, "GET", "/v2/library/web/manifests/"+get.Header().Get("Docker-Content-Digest"))
	if byDigest.Body.String() != get.Body.String() {
		t.Errorf("the manifest by its digest is %s", byDigest.Body)
	}
	var m ocispec.Manifest
	decodeBody(t, get, &m)
	layer := "/v2/library/web/blobs/" + m.Layers[0].Digest.String()
	whole := ask(h, "GET", layer)
	if got := digest.FromBytes(whole.Body.Bytes()); got != m.Layers[0].Digest || whole.Header().Get("Content-Type") != "application/octet-stream" {
		t.Errorf("the layer has digest %s, want %s; type %s", got, m.Layers[0].Digest, whole.Header().Get("Content-Type"))
	}
	if part := ask(h, "GET", layer, "Range", "bytes=2-5"); part.Code != 206 || part.Body.String() != whole.Body.String()[2:6] {
		t.Errorf("a part: %d %q", part.Code, part.Body)
	}
	for _, c := range []struct {
		method, url string
		status      int
		code        string
	}{
		{"GET", "/v2/web/blobs/" + digest.FromString("nothing").String(), 404, "BLOB_UNKNOWN"},
		{"GET", "/v2/web/blobs/sha256:12", 400, "DIGEST_INVALID"},
		{"GET", "/v2/web/manifests/" + m.Layers[0].Digest.String(), 404, "MANIFEST_UNKNOWN"},
		{"GET", "/v2/web/manifests/" + m.Config.Digest.String(), 404, "MANIFEST_UNKNOWN"},
		{"GET", "/v2/none/manifests/1", 404, "MANIFEST_UNKNOWN"},
		{"GET", "/v2/web/tags/list", 404, "UNSUPPORTED"},
		{"GET", "/v2/web", 404, "UNSUPPORTED"},
		{"GET", "/", 404, "UNSUPPORTED"},
		{"POST", "/v2/web/blobs/uploads/", 405, "UNSUPPORTED"},
		{"DELETE", url, 405, "UNSUPPORTED"},
	} {
		if w := ask(h, c.method, c.url); w.Code != c.status || !strings.Contains(w.Body.String(), `"code":"`+c.code+`"`) {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.url, w.Code, w.Body, c.status, c.code)
		}
	}
}
