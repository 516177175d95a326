package hostile

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/source/manifest"
	"sluice.dev/sluice/internal/store"
)

// TestDrawnAlike: a seed and a number say all.
func TestDrawnAlike(t *testing.T) {
	o := Objects{Seed: 7, Most: 5_000}
	differ := false
	for n := range 200 {
		a, b, other := o.Draw(n, 0), o.Draw(n, 0), Objects{Seed: 8, Most: 5_000}.Draw(n, 0)
		if len(a) != len(b) || !bytes.Equal(a[0].JSON, b[0].JSON) {
			t.Errorf("object %d is drawn in two ways", n)
		}
		differ = differ || !bytes.Equal(a[0].JSON, other[0].JSON)
	}
	if !differ {
		t.Error("the seed changes nothing")
	}
}

// TestLegal has objects read as users' are: nothing is found in them that an API server would refuse.
func TestLegal(t *testing.T) {
	var addrs [Pods]netip.Addr
	for i := range addrs {
		addrs[i] = cluster.PodAddr(i, Pods)
	}
	for _, tc := range []struct{ most, count int }{{10_000, 1_000}, {MaxBytes, 50}} {
		dir := t.TempDir()
		o, largest := Objects{Seed: 1, Most: tc.most}, 0
		files := Ground(addrs)
		for n := range tc.count {
			files = append(files, o.Draw(n, n%3)...)
		}
		for _, f := range files {
			largest = max(largest, len(f.JSON))
			if err := os.WriteFile(filepath.Join(dir, f.Name), f.JSON, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s := manifest.New(dir, store.New(), slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		if err := s.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		status := s.Status()
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		t.Logf("%v, the largest of %d bytes", status.Objects, largest)
		for _, i := range status.Issues {
			t.Errorf("%.300s", i)
		}
		if largest < tc.most/2 || largest > tc.most {
			t.Errorf("the largest object has %d bytes", largest)
		}
	}
}

// TestShrunk: what is left of objects is what it takes.
func TestShrunk(t *testing.T) {
	var files []cluster.File
	for i := range 10 {
		files = append(files, file(string(rune('a'+i)), object{
			"kind": "K", "metadata": object{"name": "n", "labels": object{"a": "b"}},
			"spec": object{"list": []int{1, 2, 3, 4, 5, 6, 7}, "other": object{"x": []string{"y"}}},
		}))
	}
	asked := 0
	few := Fewer(files, func(some []cluster.File) bool {
		asked++
		var names string
		for _, f := range some {
			names += f.Name
		}
		return strings.Contains(names, "c") && strings.Contains(names, "h")
	})
	if len(few) != 2 || few[0].Name != "c" || few[1].Name != "h" {
		t.Errorf("%d files are left", len(few))
	}
	less := Less(few[0], func(f cluster.File) bool {
		asked++
		return bytes.Contains(f.JSON, []byte("4")) && bytes.Contains(f.JSON, []byte("6"))
	})
	if want := `{"kind":"K","metadata":{"name":"n"},"spec":{"list":[4,6]}}`; string(less.JSON) != want {
		t.Errorf("left: %s, want %s", less.JSON, want)
	}
	if asked > 100 {
		t.Errorf("asked %d times", asked)
	}
}
