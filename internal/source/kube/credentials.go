package kube

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"sluice.dev/sluice/internal/source/stamp"
)

// credentials are the API server's address and our credentials for it, as the files have them at
// present.
//
// All these files are checked before each request: the kubeconfig file, and the certificates, keys
// and tokens that it names. client-go would check certificates every five minutes, tokens every
// minute, and the kubeconfig file once. A server takes the client's certificate from the
// connection, and checks at each request whether it has expired: so a new certificate needs a new
// connection. Requests on the old connection continue. client-go runs a credential plugin again
// when its credentials have expired or were refused.
type credentials struct {
	path  string // of the kubeconfig file; "" for a pod's own credentials
	mount string // the folder of a pod's own credentials
	agent string // the User-Agent
	log   *slog.Logger

	mu      sync.Mutex
	client  *http.Client
	base    *url.URL
	files   map[string]stamp.Stamp // from which a client was last made, or tried to be
	refused bool                   // the server does not accept the client's credentials
	err     error                  // why the newest files are not used
}

// Check says why the credentials cannot be used as the files are now; nil: they can. It asks no
// server.
func (c Config) Check() error {
	_, _, err := (&credentials{path: c.Kubeconfig, mount: podMount}).load()
	return err
}

// podMount is where Kubernetes puts the credentials of a pod.
const podMount = "/var/run/secrets/kubernetes.io/serviceaccount"

// connect returns a client for the API server at base, made from the newest valid files.
func (c *credentials) connect() (client *http.Client, base *url.URL, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client == nil || c.refused || c.changed() {
		c.reload()
	}
	if c.client == nil {
		return nil, nil, c.err
	}
	return c.client, c.base, nil
}

func (c *credentials) changed() bool {
	for path, was := range c.files {
		if stamp.At(path) != was {
			return true
		}
	}
	return false
}

// reload makes a client from the present files. If they are at fault, the last good client stays.
func (c *credentials) reload() {
	client, base, err := c.load()
	if err == nil {
		if c.client != nil {
			utilnet.CloseIdleConnectionsFor(c.client.Transport)
		}
		c.client, c.base = client, base
		c.refused = false
	}
	if c.client != nil && err != nil && (c.err == nil || c.err.Error() != err.Error()) {
		c.log.Warn("the credentials for the API are at fault; what they were before stays in use", "error", err)
	}
	c.err = err
}

// renew makes the next request read all credentials again, because the server does not accept them.
func (c *credentials) renew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused = true
}

// load makes a client. It takes the stamps of files before it reads them, so that the next check
// notices a change in between.
func (c *credentials) load() (*http.Client, *url.URL, error) {
	c.files = make(map[string]stamp.Stamp)
	config, err := c.config()
	if err != nil {
		return nil, nil, err
	}
	for _, path := range []string{config.CAFile, config.CertFile, config.KeyFile, config.BearerTokenFile} {
		c.follow(path)
	}
	// client-go tells connections apart by the content of these files.
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, nil, fmt.Errorf("use credentials %s: %w", c.what(), err)
	}
	config.CAFile, config.CertFile, config.KeyFile = "", "", ""
	config.UserAgent = c.agent
	// Compression costs the server more than it saves in a cluster's network.
	config.DisableCompression = true
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, nil, fmt.Errorf("use credentials %s: server %q: %w", c.what(), config.Host, err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, nil, fmt.Errorf("use credentials %s: %w", c.what(), err)
	}
	// Our credentials do not follow a redirect.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: client.Transport, CheckRedirect: stay}, base, nil
}

func (c *credentials) follow(path string) {
	if path != "" {
		c.files[path] = stamp.At(path)
	}
}

// what names the credentials: "of kubeconfig /etc/sluice/kubeconfig".
func (c *credentials) what() string {
	if c.path == "" {
		return "of this pod"
	}
	return "of kubeconfig " + c.path
}

func (c *credentials) config() (*rest.Config, error) {
	if c.path == "" {
		return c.podConfig()
	}
	c.follow(c.path)
	config, err := clientcmd.BuildConfigFromFlags("", c.path)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", c.path, err)
	}
	return config, nil
}

// podConfig returns what Kubernetes gives to the containers of a pod: the API server's address in
// two variables, and files that it replaces before they expire. See "Accessing the Kubernetes API
// from a Pod" (https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/).
func (c *credentials) podConfig() (*rest.Config, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("use credentials of this pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set, as they are in a pod; outside of one, name a kubeconfig file with --kubeconfig")
	}
	config := &rest.Config{Host: "https://" + net.JoinHostPort(host, port), BearerTokenFile: filepath.Join(c.mount, "token")}
	config.CAFile = filepath.Join(c.mount, "ca.crt")
	if _, err := os.Stat(config.BearerTokenFile); err != nil {
		c.follow(config.BearerTokenFile)
		return nil, fmt.Errorf("use credentials of this pod: %w; give the pod a service account whose token is mounted", err)
	}
	return config, nil
}

// where returns the API server's name, as far as it is known. trouble says what is wrong with the
// newest credentials while others are in use; "" if nothing is.
func (c *credentials) where() (server, trouble string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base != nil && c.err != nil {
		trouble = c.err.Error() + "; what was good before stays in use"
	}
	switch {
	case c.base != nil:
		return c.base.String(), trouble
	case c.path != "":
		return c.path, ""
	}
	return "the API of this pod's cluster", ""
}
