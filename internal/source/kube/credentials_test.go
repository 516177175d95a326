package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A token in a file is read again when the server no longer accepts it.
func TestTokenFile(t *testing.T) {
	t.Parallel()
	api := newFakeAPIWith(t, true)
	everything(api)
	api.user = "first"
	token := filepath.Join(t.TempDir(), "token")
	write(t, token, "first")
	f := followAs(t, api, Config{Kubeconfig: api.kubeconfig("tokenFile: " + token)})
	f.waitSynced()
	api.set(func() { api.user = "second" })
	api.server.CloseClientConnections()
	f.waitIssue("Kubernetes API", "does not accept the credentials")
	write(t, token, "second")
	f.waitNoIssue()
	api.put(services, service("web", 81))
	f.wait("a change", func() bool { return f.port("web") == 81 })
}

// A kubeconfig file is followed: it may appear late, be faulty for a while, and name another token
// or server.
func TestKubeconfigChanges(t *testing.T) {
	t.Parallel()
	api := newFakeAPIWith(t, true)
	everything(api)
	api.user = "first"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	f := followAs(t, api, Config{Kubeconfig: path})
	f.waitIssue("Kubernetes API", "no such file")
	api.writeKubeconfig(path, "token: first")
	f.waitSynced()
	write(t, path, "nonsense: [")
	api.server.CloseClientConnections()
	f.waitIssue("kubeconfig", path)
	api.put(services, service("web", 81))
	f.wait("a change by the old credentials", func() bool { return f.port("web") == 81 })
	api.set(func() { api.user = "the second" })
	api.writeKubeconfig(path, "token: the second")
	api.server.CloseClientConnections()
	api.put(services, service("web", 82))
	f.wait("a change by the new credentials", func() bool { return f.port("web") == 82 })
	f.waitNoIssue()
}

// A client certificate that has expired is read again from its file.
func TestCertificateFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := newAuthority(t)
	api := newFakeAPI(t)
	everything(api)
	server := httptest.NewUnstartedServer(api)
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	write(t, filepath.Join(dir, "ca"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	ca.issue(t, dir, time.Now().Add(-time.Minute))
	config := filepath.Join(dir, "kubeconfig")
	write(t, config, fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: %q, certificate-authority: ca}}]
users: [{name: u, user: {client-certificate: cert, client-key: key}}]
`, server.URL))
	f := followAs(t, api, Config{Kubeconfig: config})
	f.waitIssue("Kubernetes API", "expired certificate")
	ca.issue(t, dir, time.Now().Add(time.Hour))
	f.waitSynced()
	f.waitNoIssue()
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// authority signs client certificates.
type authority struct {
	cert   *x509.Certificate
	signer any // its private key
	pool   *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{cert, key, x509.NewCertPool()}
	a.pool.AddCert(cert)
	return a
}

// issue writes a certificate and its key to files named cert and key.
func (a *authority) issue(t *testing.T, dir string, until time.Time) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(until.UnixNano()), Subject: pkix.Name{CommonName: "sluice"},
		NotAfter: until, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.signer)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "cert"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, filepath.Join(dir, "key"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
}
