package kube

import (
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
)

type toy struct{ model.Name }

func (o *toy) Ref() model.Ref { return model.Ref{Kind: "Toy", Name: o.Name} }

// TestToy follows a kind that consists of nothing but its line in the table.
func TestToy(t *testing.T) {
	all := kinds.All
	t.Cleanup(func() { kinds.All = all })
	name := model.Name{Namespace: "shop", Name: "ball"}
	kinds.All = append(all[:len(all):len(all)], kinds.Kind{
		Kind: "Toy", Name: "Toy", Places: []kinds.Resource{{Group: "toys.example", Version: "v1", Plural: "toys"}}, Namespaced: true,
		Decode: func(kinds.Text) (model.Object, error) { return &toy{name}, nil },
	})
	const path = "/apis/toys.example/v1/toys"
	api := newFakeAPI(t)
	names := everything(api)
	api.put(path, `{"metadata":{"name":"ball","namespace":"shop"}}`)
	f := follow(t, api)
	f.waitSynced()
	f.waitNames(append(names, "Toy shop/ball")...)
	api.remove(path, "shop/ball")
	f.waitNames(names...)
}
