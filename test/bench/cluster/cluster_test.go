package cluster_test

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/source/manifest"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/test/bench/cluster"
)

// TestManifestsAreTheObjects: experiments with an agent and those in this process see the same
// cluster.
func TestManifestsAreTheObjects(t *testing.T) {
	c := cluster.Cluster{Services: 3, Endpoints: 2, NodePort: 30080}
	for name, write := range map[string]func(t *testing.T, dir string){
		"files": func(t *testing.T, dir string) {
			for f := range c.Files() {
				if err := os.WriteFile(filepath.Join(dir, f.Name), f.JSON, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		},
		"lists": func(t *testing.T, dir string) {
			for _, part := range [][2]int{{0, 2}, {2, 3}} {
				f, err := os.Create(filepath.Join(dir, string(rune('a'+part[0]))+".json"))
				if err == nil {
					err = c.WriteList(f, part[0], part[1])
				}
				if err != nil {
					t.Fatal(err)
				}
				if err := f.Close(); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir)
			s := read(t, dir)
			for i := range c.Services {
				name := cluster.ServiceName(i)
				if diff := cmp.Diff(c.Service(i), view(s).Service(name), compareAddrs); diff != "" {
					t.Errorf("service %d (-object +manifest):\n%s", i, diff)
				}
				if diff := cmp.Diff([]*model.EndpointSlice{c.Slice(i, c.Endpoints)}, view(s).Slices(name), compareAddrs); diff != "" {
					t.Errorf("slice %d (-object +manifest):\n%s", i, diff)
				}
			}
		})
	}
}

var compareAddrs = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// view returns the present objects, for a test in which nobody changes them.
func view(s *store.Store) (v *store.View) {
	s.Read(func(now *store.View) { v = now })
	return v
}

// read returns a store with everything in the folder.
func read(t *testing.T, dir string) *store.Store {
	t.Helper()
	s := store.New()
	src := manifest.New(dir, false, s, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- src.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	if err := src.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAddressesAreDistinct(t *testing.T) {
	c := cluster.Cluster{Services: 700, Endpoints: 3}
	seen := map[netip.Addr]bool{}
	for i := range c.Services {
		addrs := []netip.Addr{cluster.ServiceAddr(i)}
		if !cluster.Services.Contains(addrs[0]) {
			t.Fatalf("%s is outside of %s", addrs[0], cluster.Services)
		}
		for j := range c.Endpoints {
			a := c.Endpoint(i, j).Addr()
			if !cluster.Endpoints.Contains(a) {
				t.Fatalf("%s is outside of %s", a, cluster.Endpoints)
			}
			addrs = append(addrs, a)
		}
		for _, a := range addrs {
			if seen[a] {
				t.Fatalf("%s is used twice", a)
			}
			seen[a] = true
		}
	}
}

// TestTenantsManifestsAreTheObjects: the same for pods and policies.
func TestTenantsManifestsAreTheObjects(t *testing.T) {
	c := cluster.Tenants{Pods: 12, Local: 3, Policies: 7}
	dir := t.TempDir()
	for f := range c.Files() {
		if err := os.WriteFile(filepath.Join(dir, f.Name), f.JSON, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	direct := store.New()
	direct.Apply(c.Events())
	compiler := func(s *store.Store) *state.Policy {
		k := compile.New(compile.Config{Config: services.Config{Node: cluster.Node}, Policy: true})
		k.Update(s, s.Take())
		return k.State().Policy
	}
	want := compiler(direct)
	if len(want.Workloads) != c.Local || len(want.Rules) == 0 || len(want.Groups) == 0 {
		t.Fatalf("%d workloads, %d rules of pods, %d groups", len(want.Workloads), len(want.Rules), len(want.Groups))
	}
	for _, p := range want.Rules {
		for _, tier := range p.Tiers {
			if len(tier.Policies) != cluster.PoliciesPerPod {
				t.Errorf("rules of policies %v, want %d", tier.Policies, cluster.PoliciesPerPod)
			}
		}
	}
	if diff := cmp.Diff(want, compiler(read(t, dir)), compareAddrs, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("policy (-objects +manifests):\n%s", diff)
	}
}
