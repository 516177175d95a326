package kube

import (
	"context"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
)

// named reads one object, as far as T has it, by the right to list, as the agent has no other; nil:
// there is none. Unless it is to be fresh, it is as the API server has it at hand.
func named[T any](ctx context.Context, a *api, place kinds.Resource, name model.Name, media string, fresh bool) (*T, error) {
	query := url.Values{"fieldSelector": {"metadata.name=" + name.Name}}
	if !fresh {
		query.Set("resourceVersion", "0")
	}
	var list struct{ Items []T }
	if err := a.read(ctx, place.In(name.Namespace), query, media, &list); err != nil || len(list.Items) != 1 {
		return nil, err
	}
	return &list.Items[0], nil
}

// find reads an object as named does, where the API serves its kind, and says where that is.
func find[T any](ctx context.Context, a *api, kind *kinds.Kind, name model.Name, media string, fresh bool) (*T, kinds.Resource, error) {
	for _, place := range kind.Places {
		found, err := named[T](ctx, a, place, name, media, fresh)
		if found != nil || err != nil && !apierrors.IsNotFound(err) {
			return found, place, err
		}
	}
	return nil, kinds.Resource{}, nil
}
