package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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
	var page bytes.Buffer
	if _, err := a.get(ctx, place.In(name.Namespace), query, media, &page); err != nil {
		return nil, err
	}
	var list struct{ Items []T }
	if err := json.Unmarshal(page.Bytes(), &list); err != nil {
		return nil, fmt.Errorf("read %v %v: %w", place, name, err)
	}
	if len(list.Items) != 1 {
		return nil, nil
	}
	return &list.Items[0], nil
}
