package control

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"time"
)

// lifetime is the lifetime of certificates; no plane should live for a year.
const lifetime = 365 * 24 * time.Hour

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// loadAuthority reads the authority from two files, or makes it and writes them.
func loadAuthority(certFile, keyFile string) (*authority, error) {
	if cert, key, err := readPair(certFile, keyFile); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return &authority{cert, key}, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := template(pkix.Name{CommonName: "sluice-lab"})
	t.IsCA, t.BasicConstraintsValid = true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	a := &authority{t, key}
	return a, a.sign(t, key, certFile, keyFile)
}

// issue writes a certificate and its key: a server's if there are names or addresses, otherwise a
// client's.
func (a *authority) issue(subject pkix.Name, names []string, addrs []net.IP, certFile, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t := template(subject)
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.DNSNames, t.IPAddresses = names, addrs
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(names) > 0 {
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	return a.sign(t, key, certFile, keyFile)
}

func (a *authority) sign(t *x509.Certificate, key crypto.Signer, certFile, keyFile string) error {
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	if err := writeKey(keyFile, key); err != nil {
		return err
	}
	return os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}

func template(subject pkix.Name) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)) // rand.Reader never fails
	now := time.Now()
	return &x509.Certificate{SerialNumber: serial, Subject: subject, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(lifetime)}
}

func writeKey(path string, key crypto.Signer) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
}

func readPair(certFile, keyFile string) (*x509.Certificate, crypto.Signer, error) {
	cert, err := readPEM(certFile)
	if err != nil {
		return nil, nil, err
	}
	key, err := readPEM(keyFile)
	if err != nil {
		return nil, nil, err
	}
	c, err := x509.ParseCertificate(cert)
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", certFile, err)
	}
	k, err := x509.ParsePKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", keyFile, err)
	}
	signer, ok := k.(crypto.Signer)
	if !ok {
		return nil, nil, fmt.Errorf("read %s: a key that cannot sign", keyFile)
	}
	return c, signer, nil
}

func readPEM(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("read %s: it is not PEM", path)
	}
	return block.Bytes, nil
}
