package image

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// Handler serves the images as a registry that can only be read, those that are loaded later too.
// With the query parameter ns, by which containerd tells a mirror which registry was asked for, it
// stands for any registry; without, a repository's name is understood as Docker understands an
// image's. A known repository answers to each tag: one that is unknown means its newest image.
// fallback is the name of the image that unknown repositories have; "" for none: there they are
// not found.
func (i *Images) Handler(fallback string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Docker-Distribution-API-Version", "registry/2.0")
		rest, ok := strings.CutPrefix(r.URL.Path, "/v2/")
		repository, kind, ref := split(rest)
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			refuse(w, http.StatusMethodNotAllowed, "UNSUPPORTED", "this registry can only be read")
		case ok && rest == "":
			w.WriteHeader(http.StatusOK)
		case ok && kind == "manifests":
			i.serveManifest(w, r, repository, ref, fallback)
		case ok && kind == "blobs":
			i.serveBlob(w, r, ref)
		default:
			refuse(w, http.StatusNotFound, "UNSUPPORTED", "this registry has manifests and blobs at /v2/, and nothing else")
		}
	})
}

// split parts NAME/manifests/REF or NAME/blobs/DIGEST. A name has slashes.
func split(rest string) (repository, kind, ref string) {
	parts := strings.Split(rest, "/")
	if len(parts) < 3 {
		return "", "", ""
	}
	n := len(parts)
	return strings.Join(parts[:n-2], "/"), parts[n-2], parts[n-1]
}

func (i *Images) serveManifest(w http.ResponseWriter, r *http.Request, repository, ref, fallback string) {
	if ns := r.URL.Query().Get("ns"); ns != "" {
		repository = ns + "/" + repository
	}
	named, err := reference.ParseNormalizedNamed(repository)
	if err != nil {
		refuse(w, http.StatusBadRequest, "NAME_INVALID", err.Error())
		return
	}
	d, b, ok := i.find(named.Name(), ref)
	if !ok && digest.Digest(ref).Validate() != nil { // who asks by digest gets that or nothing
		if other, tag, err := parse(fallback); err == nil {
			d, b, ok = i.find(other, tag)
		}
	}
	if !ok {
		refuse(w, http.StatusNotFound, "MANIFEST_UNKNOWN", fmt.Sprintf("there is no image %s with %s; there are %s", named.Name(), ref, strings.Join(i.Names(), ", ")))
		return
	}
	b.serve(w, r, d)
}

func (i *Images) serveBlob(w http.ResponseWriter, r *http.Request, ref string) {
	d := digest.Digest(ref)
	if err := d.Validate(); err != nil {
		refuse(w, http.StatusBadRequest, "DIGEST_INVALID", fmt.Sprintf("%q: %v", ref, err))
		return
	}
	b, ok := i.blob(d)
	if !ok {
		refuse(w, http.StatusNotFound, "BLOB_UNKNOWN", "there is no blob "+ref)
		return
	}
	b.serve(w, r, d)
}

// serve answers with the blob, or the part of it that is asked for.
func (b blob) serve(w http.ResponseWriter, r *http.Request, d digest.Digest) {
	w.Header().Set("Content-Type", cmp.Or(b.mediaType, "application/octet-stream"))
	w.Header().Set("Docker-Content-Digest", d.String())
	w.Header().Set("ETag", `"`+d.String()+`"`)
	http.ServeContent(w, r, "", time.Time{}, io.NewSectionReader(b, 0, b.Size())) // others read b at the same time
}

// refuse answers with an error as registries have it.
func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	type problem struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	_ = json.NewEncoder(w).Encode(map[string][]problem{"errors": {{code, message}}}) // a client that is gone needs none
}
