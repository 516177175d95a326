package api

import (
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/machine"
)

func TestPathOf(t *testing.T) {
	c := cluster.Cluster{Services: 1, Endpoints: 1}
	for _, tc := range []struct {
		file       cluster.File
		path, name string
	}{
		{cluster.NamespaceFile(), "/api/v1/namespaces", "bench"},
		{cluster.NodeFile(), "/api/v1/nodes", "node"},
		{c.ServiceFile(0), "/api/v1/namespaces/bench/services", "svc-000000"},
		{cluster.File{JSON: []byte(`{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "a", "namespace": "b"}}`)},
			"/apis/networking.k8s.io/v1/namespaces/b/networkpolicies", "a"},
		{c.SliceFile(0, 1), "/apis/discovery.k8s.io/v1/namespaces/bench/endpointslices", "svc-000000"},
	} {
		if path, name, err := pathOf(tc.file.JSON); path != tc.path || name != tc.name || err != nil {
			t.Errorf("%s, %s, %v; want %s, %s", path, name, err, tc.path, tc.name)
		}
	}
}

// TestServer: a watch sees all writes, also after the server was killed and etcd compacted.
func TestServer(t *testing.T) {
	machine.ControlPlane.Take(t)
	bin, err := control.Build(t.Context(), func(s string) { t.Log(s) })
	if err != nil {
		t.Fatal(err)
	}
	s, err := Start(t.Context(), fmt.Sprintf("sbapi%d", os.Getpid()), bin, filepath.Join(t.TempDir(), "control"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	c := cluster.Cluster{Services: 3, Endpoints: 2}
	for _, objects := range []iter.Seq[cluster.File]{
		slices.Values([]cluster.File{cluster.NamespaceFile()}),
		c.Files(),
	} {
		if err := s.Fill(t.Context(), objects); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		w, err := s.Watch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for n := range 2 {
			version, err := s.Put(t.Context(), c.SliceFile(1, n))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Seen(t.Context(), version); err != nil {
				t.Error(err)
			}
		}
		w.Close()
		if err := s.Delete(t.Context(), c.SliceFile(2, 0)); err != nil {
			t.Error(err)
		}
		if err := s.Create(t.Context(), c.SliceFile(2, 1)); err != nil {
			t.Error(err)
		}
		if err := s.Compact(t.Context()); err != nil {
			t.Error(err)
		}
		if err := s.Restart(t.Context(), control.APIServer); err != nil {
			t.Fatal(err)
		}
	}
}
