package kube

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// credentials are who we are to which API server, as files say it at present.
//
// client-go looks at what the files lead to: it reads a certificate and its key
// from their files anew for each connection and closes connections whose
// certificate has changed within five minutes; it reads a token's file each
// minute; it runs a credential plugin again when what that gave has expired. It
// reads the kubeconfig file itself but once, though certificates and tokens can be
// in it: that is followed here. And once the server has refused them, all
// credentials are read anew.
type credentials struct {
	path  string // of the kubeconfig file; "" for what a pod has
	agent string // the User-Agent
	log   *slog.Logger

	mu      sync.Mutex
	client  *http.Client
	base    *url.URL
	stamp   stamp  // of the file that client was made of
	refused bool   // the server does not take what client says
	trouble string // why the newest file is not in use
}

// stamp tells versions of a file apart.
type stamp struct {
	modified time.Time
	size     int64
}

// connect returns a client for the API server at base, made of the newest file
// that is good.
func (c *credentials) connect() (client *http.Client, base *url.URL, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, err := c.stampNow()
	if err == nil && (c.client == nil || c.refused || now != c.stamp) {
		err = c.load(now)
	}
	switch {
	case err == nil:
		c.trouble = ""
	case c.client == nil:
		return nil, nil, err
	case c.trouble != err.Error():
		c.trouble = err.Error()
		c.log.Warn("the kubeconfig file is at fault; what it said before stays in use", "error", err)
	}
	return c.client, c.base, nil
}

// renew has all credentials read anew, as the server does not take them.
func (c *credentials) renew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused = true
}

func (c *credentials) stampNow() (stamp, error) {
	if c.path == "" {
		return stamp{}, nil
	}
	info, err := os.Stat(c.path)
	if err != nil {
		return stamp{}, fmt.Errorf("read kubeconfig: %w", err)
	}
	return stamp{info.ModTime(), info.Size()}, nil
}

// load makes a client of the file.
func (c *credentials) load(now stamp) error {
	config, err := c.config()
	if err != nil {
		return err
	}
	config.UserAgent = c.agent
	// Compression costs the server more than it saves in a cluster's network.
	config.DisableCompression = true
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return fmt.Errorf("read kubeconfig %s: server %q: %w", c.path, config.Host, err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("use credentials of kubeconfig %s: %w", c.path, err)
	}
	c.client, c.base, c.stamp, c.refused = client, base, now, false
	return nil
}

func (c *credentials) config() (*rest.Config, error) {
	if c.path != "" {
		config, err := clientcmd.BuildConfigFromFlags("", c.path)
		if err != nil {
			return nil, fmt.Errorf("read kubeconfig %s: %w", c.path, err)
		}
		return config, nil
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("read the credentials of a pod: %w; outside of one, name a kubeconfig file with --kubeconfig", err)
	}
	return config, nil
}

// where names the API server, as far as it is known; trouble is what is wrong
// with the newest kubeconfig file, "" if nothing is.
func (c *credentials) where() (server, trouble string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.base != nil:
		return c.base.String(), c.trouble
	case c.path != "":
		return c.path, c.trouble
	}
	return "the API of this pod's cluster", c.trouble
}
