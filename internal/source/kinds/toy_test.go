package kinds_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
	"sluice.dev/sluice/internal/source/manifest"
	"sluice.dev/sluice/internal/store"
)

// toy is what somebody who adds a kind writes: its type, its translation, and its line in the
// table.
type toy struct {
	Name model.Name
	Size int
}

func (o *toy) Ref() model.Ref { return model.Ref{Kind: "Toy", Name: o.Name} }

func decodeToy(t kinds.Text) (model.Object, error) {
	var o struct {
		Metadata struct{ Name string }
		Size     int
	}
	err := json.Unmarshal(t.Data, &o)
	return &toy{model.Name{Namespace: t.Namespace, Name: o.Metadata.Name}, o.Size}, err
}

var toys = kinds.Kind{Kind: "Toy", Name: "Toy", Places: []kinds.Resource{{Group: "toys.example", Version: "v1", Plural: "toys"}}, Namespaced: true, Decode: decodeToy}

// TestToy brings a new kind from a manifest into the store. For what the API's followers make of
// it, see TestToy in package kube.
func TestToy(t *testing.T) {
	all := kinds.All
	t.Cleanup(func() { kinds.All = all })
	kinds.All = append(all[:len(all):len(all)], toys)
	folder := t.TempDir()
	text := "apiVersion: toys.example/v1\nkind: Toy\nmetadata: {name: ball}\nsize: 3\n"
	if err := os.WriteFile(filepath.Join(folder, "toy.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := store.New()
	source := manifest.New(folder, false, s, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := source.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { stop(); running.Wait() })
	if err := source.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := toy{model.Name{Namespace: "default", Name: "ball"}, 3}
	if _, dirty := s.Take().Objects["Toy"][want.Name]; !dirty {
		t.Error("it is not dirty")
	}
	s.Read(func(v *store.View) {
		if o, _ := v.Object(want.Ref()).(*toy); o == nil || *o != want {
			t.Errorf("got %+v, want %+v", o, want)
		}
	})
	if n := source.Status().Objects["Toy"]; n != 1 {
		t.Errorf("%d toys are counted", n)
	}
}
