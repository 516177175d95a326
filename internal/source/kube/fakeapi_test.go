package kube

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The paths of kinds.
const (
	services   = "/api/v1/services"
	nodes      = "/api/v1/nodes"
	namespaces = "/api/v1/namespaces"
	pods       = "/api/v1/pods"
	accounts   = "/api/v1/serviceaccounts"
	endpoints  = "/apis/discovery.k8s.io/v1/endpointslices"
	policies   = "/apis/networking.k8s.io/v1/networkpolicies"
	cluster    = "/apis/policy.networking.k8s.io/v1beta1/clusternetworkpolicies"
	clusterOld = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"
	calicoV3   = "/apis/projectcalico.org/v3/"
	calicoV1   = "/apis/crd.projectcalico.org/v1/"
)

// fakeAPI behaves as an API server does for lists and watches, and misbehaves on demand.
type fakeAPI struct {
	t       testing.TB
	address string

	mu       sync.Mutex
	change   chan struct{} // closed and replaced at each change
	version  int
	kinds    map[string]map[string]string // path → namespace/name → JSON
	history  []fakeEvent
	oldest   int               // a watch from an earlier version gets 410
	answers  map[string]int    // path → the status code of all answers; "watch "+path of watches
	hanging  map[string]bool   // paths that never answer
	endless  int               // 0, or how many more watches end at once
	binary   bool              // answer in protobuf to clients that accept it
	pageSize int               // 0, or at most so many objects a page
	expire   bool              // the next continue token has expired
	user     string            // the token that is good, "" for any
	asked    map[string]int    // requests, by path
	unnamed  map[string]string // path → raw answer instead of a list
	pages    map[string]page   // nil, or answers to lists that are given again
	secure   bool              // with TLS; set before live
	server   *httptest.Server
}

// page is an answer to a list.
type page struct {
	mediaType string
	data      []byte
}

type fakeEvent struct {
	version            int
	path, kind, object string
}

func newFakeAPI(t testing.TB) *fakeAPI { return newFakeAPIWith(t, false) }

func newFakeAPIWith(t testing.TB, secure bool) *fakeAPI {
	f := &fakeAPI{
		secure: secure,
		t:      t, change: make(chan struct{}), version: 100, kinds: map[string]map[string]string{},
		answers: map[string]int{}, hanging: map[string]bool{}, asked: map[string]int{}, unnamed: map[string]string{},
	}
	for _, path := range []string{services, nodes, namespaces, pods, accounts, endpoints, policies} {
		f.kinds[path] = map[string]string{}
	}
	f.live()
	t.Cleanup(f.die)
	return f
}

// live starts the server, at its earlier address if it had one.
func (f *fakeAPI) live() {
	f.server = httptest.NewUnstartedServer(f)
	if f.address != "" {
		l, err := net.Listen("tcp", f.address)
		if err != nil {
			f.t.Fatal(err)
		}
		_ = f.server.Listener.Close()
		f.server.Listener = l
	}
	f.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if f.secure {
		f.server.StartTLS()
	} else {
		f.server.Start()
	}
	f.address = f.server.Listener.Addr().String()
}

// die ends the server and all its connections.
func (f *fakeAPI) die() {
	f.server.Listener.Close()
	f.server.CloseClientConnections()
	f.server.Close()
}

// set changes how the server behaves, and wakes handlers that wait.
func (f *fakeAPI) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.change)
	f.change = make(chan struct{})
}

// put creates or replaces an object, in which {{rv}} stands for the version.
func (f *fakeAPI) put(path, object string) {
	var o metav1.PartialObjectMetadata
	if err := json.Unmarshal([]byte(object), &o); err != nil {
		f.t.Fatal(err)
	}
	f.set(func() { f.record(path, o.Namespace+"/"+o.Name, object) })
}

// putAs is put for an object whose name cannot be read.
func (f *fakeAPI) putAs(path, name, object string) { f.set(func() { f.record(path, name, object) }) }

func (f *fakeAPI) record(path, key, object string) {
	f.version++
	kind := "ADDED"
	if f.kinds[path] == nil {
		f.kinds[path] = map[string]string{}
	}
	if _, ok := f.kinds[path][key]; ok {
		kind = "MODIFIED"
	}
	object = strings.Replace(object, `"metadata":{`, fmt.Sprintf(`"metadata":{"resourceVersion":"%d",`, f.version), 1)
	f.kinds[path][key] = object
	f.history = append(f.history, fakeEvent{f.version, path, kind, object})
}

func (f *fakeAPI) remove(path, key string) {
	f.set(func() {
		f.version++
		object := f.kinds[path][key]
		delete(f.kinds[path], key)
		f.history = append(f.history, fakeEvent{f.version, path, "DELETED", object})
	})
}

// forget drops the history.
func (f *fakeAPI) forget() { f.set(func() { f.version++; f.history, f.oldest = nil, f.version }) }

func (f *fakeAPI) count(path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[path]
}

// kubeconfig writes a kubeconfig file for the server.
func (f *fakeAPI) kubeconfig(user string) string {
	path := filepath.Join(f.t.TempDir(), "kubeconfig")
	f.writeKubeconfig(path, user)
	return path
}

func (f *fakeAPI) writeKubeconfig(path, user string) {
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {%s}}]
`, f.server.URL, f.authority(), user)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// authority is the certificate of the server, in PEM and base64.
func (f *fakeAPI) authority() string {
	if !f.secure {
		return `""`
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.server.Certificate().Raw}))
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, watching := r.URL.Path, r.URL.Query().Get("watch") != ""
	f.mu.Lock()
	f.asked[path]++
	key := path
	if watching {
		key = "watch " + path
		f.asked[key]++
	}
	code := f.answers[path]
	if code == 0 {
		code = f.answers[key]
	}
	hanging, user, served := f.hanging[key], f.user, f.kinds[path] != nil
	odd := f.unnamed[path]
	f.mu.Unlock()
	switch {
	case hanging:
		f.hang(key, r)
	case user != "" && r.Header.Get("Authorization") != "Bearer "+user:
		fail(w, http.StatusUnauthorized, "Unauthorized")
	case code != 0:
		fail(w, code, fmt.Sprintf("%s is answered with %d", path, code))
	case path == "/readyz":
		_, _ = w.Write([]byte("ok"))
	case path == "/apis" || strings.HasPrefix(path, "/apis/") && strings.Count(path, "/") == 3:
		f.discover(w, path)
	case !served:
		fail(w, http.StatusNotFound, "the server could not find the requested resource")
	case odd != "":
		_, _ = w.Write([]byte(odd))
	case watching:
		f.watch(w, r)
	default:
		f.list(w, r)
	}
}

// hang waits until the client gives up, or the path no longer hangs.
func (f *fakeAPI) hang(key string, r *http.Request) {
	for {
		f.mu.Lock()
		hanging, change := f.hanging[key], f.change
		f.mu.Unlock()
		if !hanging {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-change:
		}
	}
}

func fail(w http.ResponseWriter, code int, message string) {
	reasons := map[int]metav1.StatusReason{401: metav1.StatusReasonUnauthorized, 403: metav1.StatusReasonForbidden,
		404: metav1.StatusReasonNotFound, 410: metav1.StatusReasonExpired, 500: metav1.StatusReasonInternalError}
	w.Header().Set("Content-Type", mediaJSON)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(status(code, reasons[code], message))
}

func status(code int, reason metav1.StatusReason, message string) *metav1.Status {
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: message}
}

// discover answers with the groups, or the resources of one.
func (f *fakeAPI) discover(w http.ResponseWriter, path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	groups := metav1.APIGroupList{}
	resources := metav1.APIResourceList{}
	for p := range f.kinds {
		parts := strings.Split(p, "/") // "", apis, group, version, plural
		if parts[1] != "apis" {
			continue
		}
		at := parts[2] + "/" + parts[3]
		groups.Groups = append(groups.Groups, metav1.APIGroup{Name: parts[2], Versions: []metav1.GroupVersionForDiscovery{{GroupVersion: at}}})
		if path == "/apis/"+at {
			resources.APIResources = append(resources.APIResources, metav1.APIResource{Name: parts[4]})
		}
	}
	if path == "/apis" {
		_ = json.NewEncoder(w).Encode(groups)
		return
	}
	_ = json.NewEncoder(w).Encode(resources)
}

// list answers with a page. A continue token is the number of the first object of it.
func (f *fakeAPI) list(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p, ok := f.pages[r.URL.String()]; ok {
		w.Header().Set("Content-Type", p.mediaType)
		_, _ = w.Write(p.data)
		return
	}
	query := r.URL.Query()
	first, _ := strconv.Atoi(query.Get("continue"))
	if first > 0 && f.expire {
		f.expire = false
		fail(w, http.StatusGone, "the provided continue parameter is too old")
		return
	}
	limit, _ := strconv.Atoi(query.Get("limit"))
	if f.pageSize > 0 && limit > 0 {
		limit = min(limit, f.pageSize)
	}
	all := f.kinds[r.URL.Path]
	var keys []string
	for key := range all {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	keys = keys[min(first, len(keys)):]
	meta := metav1.ListMeta{ResourceVersion: strconv.Itoa(f.version)}
	if limit > 0 && len(keys) > limit {
		keys = keys[:limit]
		meta.Continue = strconv.Itoa(first + limit)
	}
	if f.binary && isBinary(r.Header.Get("Accept")) {
		head, _ := meta.Marshal()
		list := field(nil, 1, head)
		for _, key := range keys {
			list = field(list, 2, f.marshal(r.URL.Path, all[key]))
		}
		w.Header().Set("Content-Type", mediaProtobuf)
		if f.pages != nil {
			f.pages[r.URL.String()] = page{mediaProtobuf, envelope(list)}
		}
		_, _ = w.Write(envelope(list))
		return
	}
	items := make([]string, len(keys))
	for i, key := range keys {
		items[i] = all[key]
	}
	head, _ := json.Marshal(meta)
	w.Header().Set("Content-Type", mediaJSON)
	_, _ = fmt.Fprintf(w, `{"kind":"List","metadata":%s,"items":[%s]}`, head, strings.Join(items, ","))
}

func (f *fakeAPI) watch(w http.ResponseWriter, r *http.Request) {
	version, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	inBinary := f.binary && isBinary(r.Header.Get("Accept"))
	w.Header().Set("Content-Type", mediaJSON)
	if inBinary {
		w.Header().Set("Content-Type", mediaProtobuf+";stream=watch")
	}
	w.WriteHeader(http.StatusOK)
	for {
		f.mu.Lock()
		change, old, endless := f.change, version < f.oldest, f.endless
		if endless > 0 {
			f.endless--
		}
		var news []fakeEvent
		for _, e := range f.history {
			if e.path == r.URL.Path && e.version > version {
				news = append(news, e)
			}
		}
		f.mu.Unlock()
		if old {
			text, _ := json.Marshal(status(http.StatusGone, metav1.StatusReasonExpired, "too old resource version"))
			w.Header().Set("Content-Type", mediaJSON)
			f.send(w, inBinary, fakeEvent{path: "", kind: "ERROR", object: string(text)})
			return
		}
		if endless > 0 {
			return
		}
		for _, e := range news {
			f.send(w, inBinary, e)
			version = e.version
		}
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-change:
		}
	}
}

func (f *fakeAPI) send(w http.ResponseWriter, inBinary bool, e fakeEvent) {
	if !inBinary {
		_, _ = fmt.Fprintf(w, `{"type":%q,"object":%s}`+"\n", e.kind, e.object)
		return
	}
	frame := field(nil, 1, []byte(e.kind))
	frame = field(frame, 2, field(nil, 1, envelope(f.marshal(e.path, e.object))))
	_, _ = w.Write(binary.BigEndian.AppendUint32(nil, uint32(len(frame))))
	_, _ = w.Write(frame)
}

// marshal makes protobuf of JSON.
func (f *fakeAPI) marshal(path, object string) []byte {
	types := map[string]interface{ Marshal() ([]byte, error) }{
		services: &corev1.Service{}, nodes: &corev1.Node{}, namespaces: &corev1.Namespace{}, pods: &corev1.Pod{},
		accounts: &corev1.ServiceAccount{}, endpoints: &discoveryv1.EndpointSlice{}, "": &metav1.Status{},
	}
	o := types[path]
	if err := json.Unmarshal([]byte(object), o); err != nil {
		f.t.Error(err)
	}
	data, err := o.Marshal()
	if err != nil {
		f.t.Error(err)
	}
	return data
}

func field(message []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(message, number, protowire.BytesType), value)
}

func envelope(object []byte) []byte {
	message := field(nil, 1, []byte("type"))
	return append(slices.Clone(magic), field(message, 2, object)...)
}
