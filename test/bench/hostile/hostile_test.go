package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	policy "sluice.dev/sluice/internal/policy/compile"
	readkinds "sluice.dev/sluice/internal/source/kinds"
	"sluice.dev/sluice/internal/source/manifest"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/test/bench/cluster"
)

// TestDrawnAlike: an object depends on nothing but seed and number.
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

// TestEveryKind: all kinds that are read are drawn, except for the one that is always refused.
func TestEveryKind(t *testing.T) {
	drawn := map[string]bool{}
	for n := range 1_000 {
		for _, f := range (Objects{Seed: 1, Most: 10_000}).Draw(n, 0) {
			var o struct{ APIVersion, Kind string }
			if err := json.Unmarshal(f.JSON, &o); err != nil {
				t.Fatal(err)
			}
			drawn[o.APIVersion+" "+o.Kind] = true
		}
	}
	for _, k := range readkinds.All {
		if name := k.Places[0].APIVersion() + " " + k.Name; !drawn[name] && k.Kind != model.BFDProfileKind {
			t.Errorf("no %s is drawn", name)
		}
	}
}

// TestLegal reads objects as users' are read: nothing in them is anything that an API server would
// refuse.
func TestLegal(t *testing.T) {
	for _, tc := range []struct{ most, count int }{{10_000, 1_000}, {MaxBytes, 200}} {
		dir := t.TempDir()
		o, largest := Objects{Seed: 1, Most: tc.most, Addresses: 10_000}, 0
		files := Prerequisites(addresses())
		for n := range tc.count {
			files = append(files, o.Draw(n, n%3)...)
		}
		for _, f := range files {
			largest = max(largest, len(f.JSON))
			if err := os.WriteFile(filepath.Join(dir, f.Name), f.JSON, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		crowd := RemotePods(1).Change(0)
		if err := os.WriteFile(filepath.Join(dir, crowd.Name), crowd.JSON, 0o600); err != nil {
			t.Fatal(err)
		}
		s := manifest.New(dir, false, store.New(), slog.New(slog.DiscardHandler))
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

// TestShrunk: only the parts of objects remain that are needed to fail.
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

// reader reads files as an agent does, and makes policy of them.
type reader struct {
	*testing.T
	dir      string
	source   *manifest.Source
	store    *store.Store
	compiler *policy.Compiler
}

func newReader(t *testing.T) *reader {
	t.Helper()
	r := &reader{T: t, dir: t.TempDir(), store: store.New(), compiler: policy.New(policy.Config{Node: cluster.Node})}
	r.source = manifest.New(r.dir, false, r.store, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.source.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *reader) write(files ...cluster.File) {
	r.Helper()
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(r.dir, f.Name), f.JSON, 0o600); err != nil {
			r.Fatal(err)
		}
	}
}

func (r *reader) update() {
	r.Helper()
	if err := r.source.Flush(r.Context()); err != nil {
		r.Fatal(err)
	}
	dirty := r.store.Take()
	r.store.Read(func(v *store.View) { r.compiler.Step(v, dirty, nil, math.MaxInt) })
}

// TestDrawnPoliciesSelect: many policies apply to a pod of the node, and some of those select about
// as much as a policy may; Selectors returns how many selectors they have.
func TestDrawnPoliciesSelect(t *testing.T) {
	const crowd = RemotePods(1_000)
	o := Objects{Seed: 2, Most: MaxBytes, Addresses: crowd.Addresses()}
	r := newReader(t)
	r.write(Prerequisites(addresses())...)
	for i := range crowd.Files() {
		r.write(crowd.File(i, 0))
	}
	r.update()
	drawn, applied, large, much, refused := 0, 0, 0, 0, 0
	for n := range 700 {
		files := o.Draw(n, 0)
		r.write(files...)
		r.update()
		views, issues, selected := r.compiler.Views(), fmt.Sprint(r.compiler.Issues()), 0
		for _, g := range r.compiler.Policy().Groups {
			selected += len(g)
		}
		if len(views) > 0 {
			in, out := Selectors(files[0])
			if most := (in + out) * (o.Addresses + 100); selected > most {
				t.Errorf("object %d selects %d addresses, and is said to select %d at most", n, selected, most)
			}
			drawn++
			if views[0].Pods > 0 {
				applied++
			}
			if many := strings.Contains(issues, "addresses in one direction"); many || selected > MostSelected/10 {
				large++
				if selected > MostSelected/2 {
					much++
				}
				if many {
					refused++
				}
			}
		}
		for _, f := range files {
			if err := os.Remove(filepath.Join(r.dir, f.Name)); err != nil {
				t.Fatal(err)
			}
		}
		r.update()
	}
	t.Logf("of %d policies %d apply to a pod of the node, %d select more than a tenth of what they may (%d more than half), %d too much", drawn, applied, large, much, refused)
	if applied < drawn/2 || large < 2 || refused == 0 {
		t.Error("too few do")
	}
}

func addresses() (addrs [Pods]netip.Addr) {
	for i := range addrs {
		addrs[i] = cluster.PodAddr(i, Pods)
	}
	return addrs
}

// TestRemotePods: the number of pods is about as given, and some dozens of pods differ between two
// versions of a file.
func TestRemotePods(t *testing.T) {
	for _, c := range []RemotePods{1, 500, 10_000} {
		pods, most := 0, 0
		for i := range c.Files() {
			pods += len(c.pods(i, 0))
			most = max(most, len(c.File(i, 0).JSON))
		}
		t.Logf("%d pods for %d, %d addresses, files of %d bytes", pods, c, c.Addresses(), most)
		if pods < int(c)*9/10 || pods > max(2*inFile, int(c)*11/10) {
			t.Errorf("%d pods for %d", pods, c)
		}
	}
	var was, now []string
	for _, p := range RemotePods(100).pods(0, 0) {
		was = append(was, fmt.Sprint(p))
	}
	for _, p := range RemotePods(100).pods(0, 1) {
		now = append(now, fmt.Sprint(p))
	}
	if stay := len(was) - len(slices.DeleteFunc(was, func(p string) bool { return slices.Contains(now, p) })); stay < 20 || stay > 80 {
		t.Errorf("%d of %d pods stay as they were", stay, len(now))
	}
}
