package config

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// certificate writes a certificate, which is its own authority, and its key.
func certificate(t *testing.T) (cert, key string) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	return write("cert", "CERTIFICATE", der), write("key", "PRIVATE KEY", text)
}

// serve has a source answer at an address until the test ends.
func serve(t *testing.T, b *bed, files TLS) string {
	config, err := files.Config()
	if err != nil {
		t.Fatal(err)
	}
	l := listener(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- b.Serve(ctx, l, config) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func TestServe(t *testing.T) {
	b := start(t, Options{})
	cert, key := certificate(t)
	plain, secured, mutual := serve(t, b, TLS{}), serve(t, b, TLS{Cert: cert, Key: key}), serve(t, b, TLS{Cert: cert, Key: key, ClientCA: cert})
	text, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		url  string
		own  []tls.Certificate
		good bool
	}{
		{"http://" + plain, nil, true},
		{"https://" + secured, nil, true},
		{"http://" + secured, nil, false},
		{"https://" + mutual, nil, false},
		{"https://" + mutual, []tls.Certificate{pair}, true},
	} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: test.own}}
		q, err := http.NewRequest("GET", test.url+"/farms", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Key", secret)
		a, err := (&http.Client{Transport: transport}).Do(q)
		good := err == nil && a.StatusCode == 200
		if err == nil {
			_, _ = io.Copy(io.Discard, a.Body)
			_ = a.Body.Close()
		}
		transport.CloseIdleConnections()
		if good != test.good {
			t.Errorf("%s with %d certificates: %v", test.url, len(test.own), err)
		}
	}
	if _, err := (TLS{Cert: "/none", Key: "/none"}).Config(); err == nil {
		t.Error("a certificate that is not there is no error")
	}
}

func listener(t *testing.T) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestDescription reads what /openapi.json says, and finds each attribute in it.
func TestDescription(t *testing.T) {
	var d struct {
		OpenAPI    string
		Paths      map[string]any
		Components struct {
			Schemas map[string]struct{ Properties map[string]any }
		}
	}
	if err := json.Unmarshal(openAPI(), &d); err != nil {
		t.Fatal(err)
	}
	if d.OpenAPI != "3.0.3" || len(d.Paths) < 10 {
		t.Errorf("version %s, %d paths", d.OpenAPI, len(d.Paths))
	}
	for _, a := range farmTable.attributes {
		if d.Components.Schemas["farm"].Properties[a.name] == nil {
			t.Errorf("%s is not described", a.name)
		}
	}
}
