// Package api runs a real Kubernetes API server with its etcd, writes one of the bench's clusters
// to it, and changes objects as the cluster's controllers would. Several nodes read it at the same
// time, each from a testbed of its own.
package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/netip"
	"strings"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/bench/testbed"
	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/netns"
)

// address is the API server's, the same for all nodes.
var address = netip.MustParseAddr("192.168.255.1")

// serviceRange contains the clusters' services. It begins before them, as its first address belongs
// to the service "kubernetes".
var serviceRange = netip.MustParsePrefix("10.0.0.0/9")

// Server is an API server. Only its methods that read and write objects are safe for concurrent
// use.
type Server struct {
	*control.Plane
	ns     *netns.NS
	client *http.Client
	nodes  int // joined so far
}

// Start starts an API server in a namespace called name, with its files in dir. Close it; dir
// stays.
func Start(ctx context.Context, name, bin, dir string) (*Server, error) {
	if err := netns.Delete(name); err != nil {
		return nil, err
	}
	ns, err := netns.New(name)
	if err != nil {
		return nil, err
	}
	s := &Server{ns: ns}
	if err := testbed.AddAddress(ns, address); err != nil {
		return nil, errors.Join(err, ns.Delete())
	}
	s.Plane, err = control.Start(ctx, control.Config{
		Bin: bin, Dir: dir, NetNS: ns, Addr: address,
		ClusterCIDRs: []netip.Prefix{inject.Sources}, ServiceCIDRs: []netip.Prefix{serviceRange},
		// No request may be queued: the bench sends more at once than the API server allows one
		// client.
		APIServerArgs: []string{"--enable-priority-and-fairness=false"},
	})
	if err != nil {
		return nil, errors.Join(err, ns.Delete())
	}
	if s.client, err = s.newClient(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close ends the processes and removes the namespace; the files stay.
func (s *Server) Close() error { return errors.Join(s.Stop(), s.ns.Delete()) }

// Join makes the server reachable from a testbed's node.
func (s *Server) Join(l *testbed.Testbed) error {
	s.nodes++
	return l.ConnectTo(s.ns, s.nodes, address)
}

// newClient returns an administrator's client with connections of its own.
func (s *Server) newClient() (*http.Client, error) {
	config, err := clientcmd.BuildConfigFromFlags("", s.Admin())
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.Dial = s.Dial
	config.DisableCompression = true
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("use kubeconfig: %w", err)
	}
	return client, nil
}

// writers is how many requests Fill sends at once.
const writers = 24

// Fill creates objects.
func (s *Server) Fill(ctx context.Context, objects iter.Seq[cluster.File]) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for o := range objects {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			path, _, err := pathOf(o.JSON)
			if err == nil {
				_, err = s.send(ctx, http.MethodPost, path, o.JSON)
			}
			return err
		})
	}
	return group.Wait()
}

// Put replaces an existing object and returns its new version.
func (s *Server) Put(ctx context.Context, o cluster.File) (version string, err error) {
	path, name, err := pathOf(o.JSON)
	if err != nil {
		return "", err
	}
	return s.send(ctx, http.MethodPut, path+"/"+name, o.JSON)
}

// ErrInvalid is wrapped if the server rejects an object as invalid.
var ErrInvalid = errors.New("the object is invalid")

// send sends a request and returns the version of the object in the answer.
func (s *Server) send(ctx context.Context, method, path string, body []byte) (version string, err error) {
	req, err := http.NewRequestWithContext(ctx, method, s.URL()+path, bytes.NewReader(body))
	if err != nil {
		return "", fmt.Errorf("ask the API server: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask the API server: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", fmt.Errorf("read the API server's answer: %w", err)
	}
	if resp.StatusCode == http.StatusUnprocessableEntity {
		return "", fmt.Errorf("%s %s: %w: %.500s", method, path, ErrInvalid, answer)
	}
	if resp.StatusCode >= 300 {
		return "", fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	var o identity
	if err := json.Unmarshal(answer, &o); err != nil {
		return "", fmt.Errorf("read the API server's answer: %w", err)
	}
	return o.Metadata.ResourceVersion, nil
}

// identity are the fields that every object has.
type identity struct {
	APIVersion string
	Kind       string
	Metadata   struct{ Name, Namespace, ResourceVersion string }
}

// pathOf returns the path of the object's collection, and its name.
func pathOf(object []byte) (path, name string, err error) {
	var o identity
	if err := json.Unmarshal(object, &o); err != nil {
		return "", "", fmt.Errorf("read object: %w", err)
	}
	path = "/apis/" + o.APIVersion
	if !strings.Contains(o.APIVersion, "/") {
		path = "/api/" + o.APIVersion
	}
	if o.Metadata.Namespace != "" {
		path += "/namespaces/" + o.Metadata.Namespace
	}
	plural := strings.ToLower(o.Kind) + "s"
	if stem, found := strings.CutSuffix(plural, "ys"); found {
		plural = stem + "ies"
	}
	return path + "/" + plural, o.Metadata.Name, nil
}
