package kube

import (
	"context"
	"net/url"

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
