package config

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"sluice.dev/sluice/internal/lib/connlimit"
)

// TLS names files of the API's server, in PEM. Without a certificate it speaks plain HTTP.
type TLS struct {
	Cert, Key string
	// ClientCA signs the certificates that clients have to show; empty: they need none.
	ClientCA string
}

// Config reads the files; nil: no TLS.
func (t TLS) Config() (*tls.Config, error) {
	if t.Cert == "" && t.Key == "" && t.ClientCA == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("read the API's certificate: %w", err)
	}
	c := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if t.ClientCA == "" {
		return c, nil
	}
	text, err := os.ReadFile(t.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("read the authority of clients: %w", err)
	}
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("read the authority of clients: %s holds no certificate", t.ClientCA)
	}
	c.ClientAuth = tls.RequireAndVerifyClientCert
	return c, nil
}

// Serve answers to the API on a listener, which it closes, until ctx ends. Clients hold a part of
// the process's descriptors at most: checks of backends need the others. Without config it speaks
// plain HTTP.
func (s *Source) Serve(ctx context.Context, l net.Listener, config *tls.Config) error {
	server := &http.Server{
		Handler: s.Handler(), ConnContext: connlimit.Context, MaxHeaderBytes: 16 << 10,
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute,
		WriteTimeout: patience + time.Minute, IdleTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	l = connlimit.Share(4, 256).Listen(l)
	if config != nil {
		config.NextProtos = []string{"http/1.1"}
		l = tls.NewListener(l, config)
	}
	stop := context.AfterFunc(ctx, func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if server.Shutdown(closing) != nil {
			_ = server.Close() // whoever is still connected has had his time
		}
	})
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the API: %w", err)
	}
	return nil
}
