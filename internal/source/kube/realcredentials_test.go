package kube

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority returns the authority that signs the client certificates of a cluster.
func (c *realCluster) authority(t *testing.T) *authority {
	t.Helper()
	part := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(c.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(data)
		return block.Bytes
	}
	cert, err := x509.ParseCertificate(part("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.ParsePKCS8PrivateKey(part("ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert: cert, signer: key}
}

// An expired certificate ends no watch, but new requests on its connection fail; a new certificate
// in its file is used at once, on a new connection.
func TestRealCertificateExpires(t *testing.T) {
	c := realAPI(t)
	names := c.shop(t)
	way := c.forward(t)
	c.user(t, way.url(), "sluice", allResources...)
	dir, ca := t.TempDir(), c.authority(t)
	expires := time.Now().Add(4 * time.Second).Truncate(time.Second)
	ca.issue(t, dir, expires)
	path := filepath.Join(dir, "kubeconfig")
	write(t, path, c.config(way.url(), "client-certificate: cert, client-key: key"))
	f := followReal(t, path)
	f.waitSynced()
	f.waitOwn(names...)
	time.Sleep(time.Until(expires) + time.Millisecond) // the API server has this machine's clock
	f.wait("the refusal of what is new", func() bool {
		c.put(t, services, fmt.Sprintf(webOn, 81))
		return f.port("web") == 81 // the watch continues
	})
	f.waitIssue("API discovery", "does not accept the credentials")
	f.waitOwn(names...)
	connections := way.connections()
	ca.issue(t, dir, time.Now().Add(time.Hour))
	f.waitNoIssue()
	f.flush()
	c.put(t, services, fmt.Sprintf(webOn, 82))
	f.wait("a change", func() bool { return f.port("web") == 82 })
	if way.connections() == connections {
		t.Error("the new certificate came with no new connection")
	}
}

// token makes a token of a service account that is valid as long as a secret exists.
func (c *realCluster) token(t *testing.T, account, secret string) string {
	t.Helper()
	c.put(t, "/api/v1/secrets", fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"shop"}}`, secret))
	var s struct{ Metadata struct{ UID string } }
	_, answer := c.ask(t, http.MethodGet, "/api/v1/namespaces/shop/secrets/"+secret, "")
	if err := json.Unmarshal([]byte(answer), &s); err != nil {
		t.Fatal(err)
	}
	code, answer := c.ask(t, http.MethodPost, "/api/v1/namespaces/shop/serviceaccounts/"+account+"/token", fmt.Sprintf(
		`{"spec":{"expirationSeconds":600,"boundObjectRef":{"kind":"Secret","apiVersion":"v1","name":%q,"uid":%q}}}`, secret, s.Metadata.UID))
	var request struct{ Status struct{ Token string } }
	if err := json.Unmarshal([]byte(answer), &request); err != nil || request.Status.Token == "" {
		t.Fatalf("make token: %d %s: %v", code, answer, err)
	}
	return request.Status.Token
}

// accepts reports whether the API server accepts a token. What it has accepted it believes for a
// while.
func (c *realCluster) accepts(t *testing.T, token string) bool {
	t.Helper()
	const reviews = "/apis/authentication.k8s.io/v1/tokenreviews"
	var review struct{ Status struct{ Authenticated bool } }
	code, answer := c.ask(t, http.MethodPost, reviews, fmt.Sprintf(`{"spec":{"token":%q}}`, token))
	if err := json.Unmarshal([]byte(answer), &review); err != nil || code != http.StatusCreated {
		t.Fatalf("review a token: %d %s: %v", code, answer, err)
	}
	return review.Status.Authenticated
}

func (c *realCluster) allowAccount(t *testing.T, account string) {
	t.Helper()
	c.put(t, accounts, fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"shop"}}`, account))
	c.allow(t, account, allResources...)
	c.put(t, bindings, fmt.Sprintf(`{"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%[1]q},
		"subjects":[{"kind":"ServiceAccount","namespace":"shop","name":%[1]q}]}`, account))
}

// mount writes a token and the authority as a kubelet does for a pod: both at once, by a link.
func mount(t *testing.T, c *realCluster, dir, version, token string) {
	t.Helper()
	ca, err := os.ReadFile(filepath.Join(c.dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, version), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, version, "token"), token)
	write(t, filepath.Join(dir, version, "ca.crt"), string(ca))
	for _, name := range []string{"token", "ca.crt"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(version, filepath.Join(dir, "..tmp")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
}

// The credentials of a pod are followed as a kubelet replaces them.
func TestRealPod(t *testing.T) {
	c := realAPI(t)
	names := append(c.shop(t), "ServiceAccount shop/in-pod")
	c.allowAccount(t, "in-pod")
	way := c.forward(t)
	host, port, err := net.SplitHostPort(way.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	f := newFixture(t, func(s *sink) *Source {
		times := timing{}
		realTiming(&times)
		source := newSource(Config{Policies: true}, times, s, slog.New(slog.DiscardHandler))
		source.api.credentials.mount = dir
		return source
	})
	f.waitIssue("KUBERNETES_SERVICE_HOST", "--kubeconfig")
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	f.waitIssue("service account", "no such file")
	first := c.token(t, "in-pod", "first")
	mount(t, c, dir, "1", first)
	f.waitSynced()
	f.waitOwn(names...)
	f.waitNoIssue()
	c.remove(t, "/api/v1/namespaces/shop/secrets/first")
	waitFor(t, "the first token to be refused", func() bool { time.Sleep(100 * time.Millisecond); return !c.accepts(t, first) })
	way.cut()
	f.waitIssue("does not accept the credentials")
	f.waitOwn(names...)
	mount(t, c, dir, "2", c.token(t, "in-pod", "second"))
	f.waitNoIssue()
	c.put(t, services, fmt.Sprintf(webOn, 81))
	f.wait("a change", func() bool { return f.port("web") == 81 })
}

// A credential plugin is run again when the server no longer accepts its credentials.
func TestRealPlugin(t *testing.T) {
	c := realAPI(t)
	names := append(c.shop(t), "ServiceAccount shop/plugged")
	c.allowAccount(t, "plugged")
	way := c.forward(t)
	dir := t.TempDir()
	plugin := filepath.Join(dir, "plugin")
	write(t, plugin, `#!/bin/sh
echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"'$(cat `+dir+`/token 2>/dev/null)'"}}'
`)
	if err := os.Chmod(plugin, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "kubeconfig")
	write(t, path, c.config(way.url(), fmt.Sprintf("exec: {apiVersion: client.authentication.k8s.io/v1, command: %q, interactiveMode: Never}", plugin)))
	f := followReal(t, path)
	f.waitIssue("Kubernetes API", "getting credentials", "plugin")
	write(t, filepath.Join(dir, "token"), "expired")
	f.waitIssue("Kubernetes API", "does not accept the credentials")
	write(t, filepath.Join(dir, "token"), c.token(t, "plugged", "second"))
	f.waitSynced()
	f.waitOwn(names...)
	f.waitNoIssue()
	c.put(t, services, fmt.Sprintf(webOn, 81))
	f.wait("a change", func() bool { return f.port("web") == 81 })
}
