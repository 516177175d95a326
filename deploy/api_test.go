package deploy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

// api asks the API server as its administrator. What polls and what only prepares uses it, as
// kubectl takes a good part of a second of a core each time it starts.
type api struct {
	*http.Client
	url string
}

func newAPI(t *testing.T, kubeconfig string, dial func(*rest.Config)) *api {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	dial(config)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	return &api{client, config.Host}
}

// The media types of patches.
const (
	applied = "application/apply-patch+yaml"
	merged  = "application/merge-patch+json"
	// strategic is for lists whose items have keys.
	strategic = "application/strategic-merge-patch+json"
)

// do sends a request and reads the answer into an object, if there is one.
func (a *api) do(t *testing.T, method, path, mediaType, body string, into any) {
	t.Helper()
	if err := a.try(t.Context(), method, path, mediaType, body, into); err != nil {
		t.Fatal(err)
	}
}

func (a *api) try(ctx context.Context, method, path, mediaType, body string, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, a.url+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", mediaType)
	req.Header.Set("Accept", "application/json")
	resp, err := a.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
		if resp.StatusCode == http.StatusNotFound {
			err = errors.Join(err, fs.ErrNotExist)
		}
	}
	if err != nil || into == nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// read reads an object, or a list.
func (a *api) read(t *testing.T, path string, into any) {
	t.Helper()
	a.do(t, http.MethodGet, path, "", "", into)
}

// apply applies the objects of a text as 'kubectl apply --server-side --force-conflicts' does: the
// server refuses unknown fields. below is a subresource, or "".
func (a *api) apply(t *testing.T, text, below string) {
	t.Helper()
	for document := range strings.SplitSeq(text, "\n---\n") {
		path := objectPath(t, document)
		if path == "" {
			continue
		}
		query := url.Values{"fieldManager": {"kubectl"}, "force": {"true"}, "fieldValidation": {"Strict"}}
		a.do(t, http.MethodPatch, path+below+"?"+query.Encode(), applied, document, nil)
	}
}

// objectPath returns where the API has an object, "" for a document without any. The plural of the
// kinds here is regular.
func objectPath(t *testing.T, document string) string {
	t.Helper()
	var o struct {
		APIVersion, Kind string
		Metadata         struct{ Name, Namespace string }
	}
	if err := yaml.Unmarshal([]byte(document), &o); err != nil {
		t.Fatalf("parse %s: %v", document, err)
	}
	if o.Kind == "" {
		return ""
	}
	path := "/apis/" + o.APIVersion
	if !strings.Contains(o.APIVersion, "/") {
		path = "/api/" + o.APIVersion
	}
	if o.Metadata.Namespace != "" {
		path += "/namespaces/" + o.Metadata.Namespace
	}
	return path + "/" + strings.ToLower(o.Kind) + "s/" + o.Metadata.Name
}

// may tells whether the agent's account may do something with a resource: "nodes", "nodes/status",
// "events.events.k8s.io".
func (a *api) may(t *testing.T, verb, resource string) bool {
	t.Helper()
	resource, below, _ := strings.Cut(resource, "/")
	resource, group, _ := strings.Cut(resource, ".")
	review := map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
		"spec": map[string]any{
			"user":               "system:serviceaccount:" + namespace + ":sluice",
			"resourceAttributes": map[string]string{"verb": verb, "group": group, "resource": resource, "subresource": below},
		},
	}
	body, err := json.Marshal(review)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Status struct{ Allowed bool } }
	a.do(t, http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", "application/json", string(body), &answer)
	return answer.Status.Allowed
}

// awaitMay waits until the agent may do something, or may not: the server updates its rules in the
// background.
func (a *api) awaitMay(t *testing.T, verb, resource string, want bool) {
	t.Helper()
	poll(t, func() string {
		if may := a.may(t, verb, resource); may != want {
			return fmt.Sprintf("it may %s %s: %v", verb, resource, may)
		}
		return ""
	})
}

// token makes a token for the agent's account, as the kubelet does for a pod.
func (a *api) token(t *testing.T) []byte {
	t.Helper()
	var request struct{ Status struct{ Token string } }
	a.do(t, http.MethodPost, "/api/v1/namespaces/"+namespace+"/serviceaccounts/sluice/token", "application/json",
		`{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}`, &request)
	return bytes.TrimSpace([]byte(request.Status.Token))
}

// poll waits until nothing is wrong any more.
func poll(t *testing.T, wrong func() string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; {
		why := wrong()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("timed out: %s", why)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(why)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
