package config

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"sluice.dev/sluice/internal/lib/connlimit"
)

// Handler answers to nftlb's API (docs/nftlb.md, section 2).
func (s *Source) Handler() http.Handler { return http.HandlerFunc(s.handle) }

func (s *Source) handle(w http.ResponseWriter, q *http.Request) {
	if q.Method == http.MethodGet && q.URL.Path == "/openapi.json" {
		respond(w, http.StatusOK, openAPI())
		return
	}
	if !s.allowed(q) {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	defer connlimit.Answer(q)()
	path, err := split(q.URL)
	if err != nil {
		s.fail(w, err)
		return
	}
	switch q.Method {
	case http.MethodGet:
		s.get(w, q, path)
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		s.change(w, q, path)
	default:
		w.WriteHeader(http.StatusBadRequest)
	}
}

// allowed reports whether the request has a key that it may be made with.
func (s *Source) allowed(q *http.Request) bool {
	given := sha256.Sum256([]byte(q.Header.Get("Key")))
	match := func(key string) bool {
		want := sha256.Sum256([]byte(key))
		return subtle.ConstantTimeCompare(given[:], want[:]) == 1 && key != ""
	}
	good := match(s.options.Key)
	for _, key := range s.options.ReadKeys {
		good = match(key) && q.Method == http.MethodGet || good
	}
	return good
}

var (
	errInvalid = &failure{400, "invalid request"}
	errNoPath  = &failure{404, "invalid request"}
)

// split returns the parts of a path. A slash at its end does no harm; an empty part is not found.
func split(u *url.URL) ([]string, error) {
	text, ok := strings.CutPrefix(u.EscapedPath(), "/")
	if !ok {
		return nil, errInvalid
	}
	text = strings.TrimSuffix(text, "/")
	if len(text) > 4096 {
		return nil, errNoPath
	}
	parts := strings.Split(text, "/")
	for i, p := range parts {
		plain, err := url.PathUnescape(p)
		if err != nil || plain == "" {
			return nil, errNoPath
		}
		parts[i] = plain
	}
	return parts, nil
}

func respond(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that is gone needs no answer
}

func say(w http.ResponseWriter, status int, text string) {
	var p printer
	p.WriteString(`{"response": `)
	p.quote(text)
	p.WriteByte('}')
	respond(w, status, p.Bytes())
}

// fail answers with an error. One that is not about the request is the server's.
func (s *Source) fail(w http.ResponseWriter, err error) {
	if f, ok := errors.AsType[*failure](err); ok {
		say(w, f.status, f.text)
		return
	}
	s.log.Error("request fails", "error", err)
	say(w, http.StatusInternalServerError, err.Error())
}

// get answers with what there is.
func (s *Source) get(w http.ResponseWriter, q *http.Request, path []string) {
	r, names, err := find(q.Method, path)
	if err == nil {
		var p *printer
		if p, err = r.get(s, q.Context(), names[0]); err == nil {
			respond(w, http.StatusOK, p.Bytes())
			return
		}
	}
	s.fail(w, err)
}

// change carries out a request that changes something.
func (s *Source) change(w http.ResponseWriter, q *http.Request, path []string) {
	body, err := io.ReadAll(http.MaxBytesReader(w, q.Body, mostBody))
	if err != nil {
		if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
			err = &failure{413, "the request has more than " + itoa(mostBody) + " bytes"}
		} else {
			err = malformed("the body can't be read: %v", err)
		}
		s.fail(w, err)
		return
	}
	r, names, err := find(q.Method, path)
	if err != nil {
		s.fail(w, err)
		return
	}
	warnings, err := s.submit(q.Context(), func(c *revision) error { return r.edit(c, names, body) })
	if err != nil {
		s.fail(w, err)
		return
	}
	say(w, http.StatusOK, strings.Join(append([]string{"success"}, warnings...), ". "))
}
