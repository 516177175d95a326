package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
)

// pageSize is the number of objects in a page of a list.
const pageSize = 500

// api sends requests to an API server.
type api struct {
	credentials *credentials
	timing      timing
	dialed      dialed
}

// api returns what sends requests with the config's credentials.
func (c Config) api(t timing, log *slog.Logger) *api {
	return &api{credentials: &credentials{path: c.Kubeconfig, mount: podMount, agent: c.UserAgent, log: log}, timing: t}
}

// errSilent means that the server does not answer, or only in part.
var errSilent = errors.New("the API server does not answer in time")

// errBroken means that the connection of a watch broke, or that something on the way ended it in
// the middle of an event.
var errBroken = errors.New("the connection of a watch broke")

// unreachable is the error of a request that did not reach the server, or whose answer did not come
// back.
type unreachable struct{ error }

func (u unreachable) Unwrap() error { return u.error }

// get reads a whole answer.
func (a *api) get(ctx context.Context, path string, query url.Values, accept string, into *bytes.Buffer) (inBinary bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, a.timing.answer, errSilent)
	defer cancel()
	answer, err := a.send(ctx, path, query, accept)
	if err != nil {
		return false, err
	}
	defer func() { _ = answer.Body.Close() }()
	into.Reset()
	if _, err := into.ReadFrom(answer.Body); err != nil {
		return false, unreachable{reason(ctx, err)}
	}
	return isBinary(answer.Header.Get("Content-Type")), nil
}

// read reads a whole answer in JSON.
func (a *api) read(ctx context.Context, path string, query url.Values, accept string, into any) error {
	var answer bytes.Buffer
	if _, err := a.get(ctx, path, query, accept, &answer); err != nil {
		return err
	}
	if err := json.Unmarshal(answer.Bytes(), into); err != nil {
		return fmt.Errorf("read what %s has: %w", path, err)
	}
	return nil
}

// send sends a request, and returns the answer if the server accepts the request.
func (a *api) send(ctx context.Context, path string, query url.Values, accept string) (*http.Response, error) {
	return a.do(ctx, http.MethodGet, path, query, http.Header{"Accept": {accept}}, nil)
}

func (a *api) do(ctx context.Context, method, path string, query url.Values, header http.Header, body io.Reader) (*http.Response, error) {
	client, base, err := a.credentials.connect()
	if err != nil {
		return nil, unreachable{err}
	}
	target := *base
	target.Path = strings.TrimSuffix(base.Path, "/") + path
	target.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, a.dialed.trace()), method, target.String(), body)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", target.String(), err)
	}
	request.Header = header
	answer, err := client.Do(request)
	if err != nil {
		return nil, unreachable{reason(ctx, err)}
	}
	if answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusCreated {
		defer func() { _ = answer.Body.Close() }()
		if answer.StatusCode == http.StatusUnauthorized {
			a.credentials.renew()
		}
		return nil, refusal(answer)
	}
	return answer, nil
}

// reason keeps that part of an error which is the same for all requests, so that one cause is
// reported once.
func reason(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// refusal is the error in the answer to a request that the server does not accept.
func refusal(answer *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<20)) // a part of it will do
	var status metav1.Status
	err := readStatus(raw{body, isBinary(answer.Header.Get("Content-Type"))}, &status)
	if err == nil && status.Code != 0 {
		return apierrors.FromObject(&status)
	}
	after, _ := strconv.Atoi(answer.Header.Get("Retry-After")) // 0 if there is none
	text := strings.TrimSpace(string(body))
	return apierrors.NewGenericServerResponse(answer.StatusCode, "get", schema.GroupResource{}, "", text, after, true)
}

// readStatus reads a Status. In an answer it is in an envelope, in an event it is not.
func readStatus(r raw, into *metav1.Status) error {
	if r.binary && bytes.HasPrefix(r.data, magic) {
		inner, err := unwrap(r.data)
		if err != nil {
			return err
		}
		r.data = inner
	}
	if !r.binary {
		return json.Unmarshal(r.data, into)
	}
	return into.Unmarshal(r.data)
}

// write creates or changes an object in the API.
func (a *api) write(ctx context.Context, method, path string, query url.Values, media string, object any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, a.timing.answer, errSilent)
	defer cancel()
	body, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("encode what is written to %s: %w", path, err)
	}
	answer, err := a.do(ctx, method, path, query, http.Header{"Accept": {mediaJSON}, "Content-Type": {media}}, bytes.NewReader(body))
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// applyStatus applies what a field manager has to say to the status of an object, which the API
// serves at a place of its kind, in place of what the manager said before; nil: nothing. It reports
// whether there is such an object, with that uid if one is given.
func (a *api) applyStatus(ctx context.Context, k *kinds.Kind, at kinds.Resource, object model.Name, uid types.UID, manager string, status any) (there bool, err error) {
	meta := map[string]any{"name": object.Name}
	if object.Namespace != "" {
		meta["namespace"] = object.Namespace
	}
	if uid != "" {
		meta["uid"] = uid
	}
	o := map[string]any{"apiVersion": at.APIVersion(), "kind": k.Name, "metadata": meta}
	if status != nil {
		o["status"] = status
	}
	query := url.Values{"fieldManager": {manager}, "force": {"true"}}
	err = a.write(ctx, http.MethodPatch, at.In(object.Namespace)+"/"+object.Name+"/status", query, mediaApplyPatch, o)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return false, nil
	}
	return true, err
}

// list reads all present objects of a kind, calls item with each, and returns the version from
// which a watch continues. If the server loses the history that the pages come from, list calls
// restart and begins again, with everything in one page.
func (a *api) list(ctx context.Context, at kinds.Resource, k *kinds.Kind, restart func(), item func(raw)) (version string, err error) {
	version, err = a.pages(ctx, at, k, pageSize, item)
	if isExpired(err) {
		restart()
		version, err = a.pages(ctx, at, k, 0, item)
	}
	return version, err
}

func (a *api) pages(ctx context.Context, at kinds.Resource, k *kinds.Kind, size int, item func(raw)) (version string, err error) {
	query := url.Values{}
	if size > 0 {
		query.Set("limit", strconv.Itoa(size))
	}
	if k.Fields != "" {
		query.Set("fieldSelector", k.Fields)
	}
	var page bytes.Buffer
	for {
		inBinary, err := a.get(ctx, at.Path(), query, accept(k), &page)
		if err != nil {
			return "", err
		}
		meta, err := readPage(page.Bytes(), inBinary, item)
		if err != nil {
			return "", err
		}
		if meta.Continue == "" {
			return meta.ResourceVersion, nil
		}
		query.Set("continue", meta.Continue)
	}
}

// ready reports whether the API server says that it is ready. One that is just starting does not,
// nor does one that does not let us ask.
func (a *api) ready(ctx context.Context) bool {
	var answer bytes.Buffer
	_, err := a.get(ctx, "/readyz", nil, "*/*", &answer)
	return err == nil
}

// latest returns the API's current version. It is not older than that of any list answered before.
func (a *api) latest(ctx context.Context, at kinds.Resource, k *kinds.Kind) (version string, err error) {
	var page bytes.Buffer
	inBinary, err := a.get(ctx, at.Path(), url.Values{"limit": {"1"}}, accept(k), &page)
	if err != nil {
		return "", err
	}
	meta, err := readPage(page.Bytes(), inBinary, func(raw) {})
	return meta.ResourceVersion, err
}

// watch calls event with each change after a version, until the watch ends; every watch ends
// sometime. The error is errBroken if its connection broke. begun is called when the server has
// accepted the watch.
func (a *api) watch(ctx context.Context, at kinds.Resource, k *kinds.Kind, version string, begun func(), event func(kind string, o raw) error) error {
	lasts := a.timing.watch + rand.N(a.timing.watch) // so that not all watches end at once
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := time.AfterFunc(a.timing.answer, func() { cancel(errSilent) })
	defer patience.Stop()
	query := url.Values{
		"watch":               {"1"},
		"allowWatchBookmarks": {"true"},
		"resourceVersion":     {version},
		"timeoutSeconds":      {strconv.Itoa(int(lasts.Seconds()))},
	}
	if k.Fields != "" {
		query.Set("fieldSelector", k.Fields)
	}
	accept := accept(k)
	if k.Typed {
		accept = mediaProtobuf + ";stream=watch, " + mediaJSON
	}
	answer, err := a.send(ctx, at.Path(), query, accept)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	patience.Reset(lasts + a.timing.answer)
	begun()
	body := &wire{Reader: answer.Body}
	in := newEvents(body, isBinary(answer.Header.Get("Content-Type")))
	for {
		kind, o, err := in.next()
		switch {
		case err == io.EOF:
			return nil
		case err == nil:
			err = event(kind, o)
		case ctx.Err() == nil && (body.broken || errors.Is(err, io.ErrUnexpectedEOF)):
			return errBroken
		}
		if err != nil {
			return reason(ctx, err)
		}
	}
}

// wire remembers whether reading failed, rather than ended.
type wire struct {
	io.Reader
	broken bool
}

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if err != nil && err != io.EOF {
		w.broken = true
	}
	return n, err
}

func accept(k *kinds.Kind) string {
	if k.Typed {
		return mediaProtobuf + ", " + mediaJSON
	}
	return mediaJSON
}

// isExpired reports whether the API no longer has the history since a version.
func isExpired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// isOlder reports whether one version of a list is certainly older than another. Versions of
// Kubernetes' own kinds compare as numbers since 1.35 (KEP-5504). If one is not a number, nothing
// is certain.
func isOlder(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}
