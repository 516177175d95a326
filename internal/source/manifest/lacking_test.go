package manifest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/model"
)

// TestLacking starts on folders in which something can't be read, mends it, and
// breaks it again.
func TestLacking(t *testing.T) {
	good, bad := serviceYAML("b", 80), strings.Replace(serviceYAML("b", 80), "  clusterIP: 10.96.0.10\n", "", 1)
	for _, c := range []struct{ name, content, reason string }{
		{"an object at fault", bad, "b.yaml: it is at fault"},
		{"a document that can't be parsed", serviceYAML("a", 80) + "---\nkind: Service\n  spec: [\n", "b.yaml: it is at fault"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := follow(t, folderWith(t, "a.yaml", serviceYAML("a", 80), "b.yaml", c.content))
			f.waitSynced()
			f.waitLacking(c.reason)
			f.write("b.yaml", good)
			f.waitLacking()
			f.write("b.yaml", c.content)
			f.waitIssue("b.yaml")
			f.waitLacking() // its last good state is known
		})
	}
}

// TestObjectsAreAllThatLacks names the objects of which nothing can be used, as long as nothing
// else is lacking.
func TestObjectsAreAllThatLacks(t *testing.T) {
	odd := "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {name: odd, namespace: shop}\nspec: {selector: \"app = 'x'\"}\n"
	f := follow(t, folderWith(t, "a.yaml", serviceYAML("a", 80), "b.yaml", odd))
	f.waitSynced()
	f.waitLacking("b.yaml: it is at fault")
	objects := func() []model.Ref {
		return slices.SortedFunc(slices.Values(f.source.Status().LackingObjects), model.Ref.Compare)
	}
	want := []model.Ref{{Kind: model.CalicoPolicy, Name: model.Name{Namespace: "shop", Name: "odd"}}}
	if got := objects(); !slices.Equal(got, want) {
		t.Errorf("objects %v, want %v", got, want)
	}
	both := append(slices.Clone(want), model.Ref{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: "b"}})
	for other, withOther := range map[string][]model.Ref{
		"kind: [": nil,
		strings.Replace(serviceYAML("b", 80), "  clusterIP: 10.96.0.10\n", "", 1): both,
	} {
		f.write("c.yaml", other)
		f.waitLacking("c.yaml: it is at fault")
		if got := objects(); !slices.Equal(got, withOther) {
			t.Errorf("objects %v, want %v, as %q is lacking, too", got, withOther, other)
		}
		f.remove("c.yaml")
		f.wait("c.yaml is gone", func() bool { return slices.Equal(objects(), want) })
	}
}

func TestNothingLacks(t *testing.T) {
	twice := serviceYAML("a", 80) + "---\n" + serviceYAML("a", 81)
	f := follow(t, folderWith(t, "a.yaml", twice, "b.yaml", "kind: Deployment\napiVersion: apps/v1\n"))
	f.waitSynced()
	f.waitLacking()
	f.remove("a.yaml")
	f.remove("b.yaml")
	f.waitNames()
	f.waitLacking() // emptied while it was watched
}

func TestEmptyFolderIsLacking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := untold(t, folderWith(t))
		f.waitSynced()
		f.waitLacking("it holds no manifests")
		began := time.Now()
		for i := range 5 { // files come one after the other
			f.write(fmt.Sprintf("%d.yaml", i), serviceYAML(fmt.Sprintf("s%d", i), 80))
			f.flush()
			time.Sleep(quiet / 20)
			if got := f.source.Status().Lacking; len(got) == 0 {
				t.Fatal("nothing is lacking while the folder is being filled")
			}
		}
		f.waitLacking()
		if took := time.Since(began); took < quiet {
			t.Errorf("the folder counted as full after %s", took)
		}
	})
}

func TestDeletedIsNotLacking(t *testing.T) {
	f := follow(t, folderWith(t, "a.yaml", serviceYAML("a", 80), "b.yaml", "kind: [\n"))
	f.waitSynced()
	f.waitLacking("b.yaml")
	f.remove("b.yaml")
	f.waitLacking()
}

func TestUnreadableFileIsLacking(t *testing.T) {
	dir := folderWith(t, "a.yaml", serviceYAML("a", 80), "b.yaml", "")
	must(t, os.Truncate(filepath.Join(dir, "b.yaml"), maxFile+1))
	f := follow(t, dir)
	f.waitSynced()
	f.waitLacking("b.yaml", "split it")
}

func TestBusyFileIsLacking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := folderWith(t, "a.yaml", serviceYAML("a", 80), "b.yaml", "")
		w, err := os.OpenFile(filepath.Join(dir, "b.yaml"), os.O_WRONLY, 0)
		must(t, err)
		f := untold(t, dir)
		f.waitSynced()
		f.waitLacking("b.yaml: somebody is writing it")
		_, err = w.WriteString(serviceYAML("b", 80))
		must(t, err)
		must(t, w.Close())
		f.waitNames("Service shop/a", "Service shop/b")
		f.waitLacking()
	})
}

// waitLacking waits until what is lacking names all parts; with no parts, until nothing is.
func (f *fixture) waitLacking(parts ...string) {
	f.t.Helper()
	f.wait("lacking "+strings.Join(parts, ", "), func() bool {
		text := strings.Join(f.source.Status().Lacking, "\n")
		for _, p := range parts {
			if !strings.Contains(text, p) {
				return false
			}
		}
		return len(parts) > 0 || text == ""
	})
}
