package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
)

// unreadPolicies are the kinds of policies that a cluster may have for other programs, and that no
// source reads.
var unreadPolicies = []struct {
	place   kinds.Resource
	kind    string
	instead string
}{
	{kinds.Resource{Group: "policy.networking.k8s.io", Version: "v1alpha1", Plural: "adminnetworkpolicies"}, "AdminNetworkPolicy", "ClusterNetworkPolicy"},
	{kinds.Resource{Group: "policy.networking.k8s.io", Version: "v1alpha1", Plural: "baselineadminnetworkpolicies"}, "BaselineAdminNetworkPolicy", "ClusterNetworkPolicy"},
	{kinds.Resource{Group: "cilium.io", Version: "v2", Plural: "ciliumnetworkpolicies"}, "CiliumNetworkPolicy", "NetworkPolicy"},
	{kinds.Resource{Group: "cilium.io", Version: "v2", Plural: "ciliumclusterwidenetworkpolicies"}, "CiliumClusterwideNetworkPolicy", "ClusterNetworkPolicy"},
}

// UnreadPolicies asks the API for policies of kinds that no source reads, and returns an issue for
// each kind of which there are some, and for each that it may not list.
func UnreadPolicies(ctx context.Context, config Config, log *slog.Logger) ([]model.Issue, error) {
	a := config.api(usualTiming(), log)
	var issues []model.Issue
	for _, k := range unreadPolicies {
		object := model.Ref{Kind: model.Unread(k.place.APIVersion(), k.kind)}
		var list metav1.PartialObjectMetadataList
		served, err := a.serves(ctx, k.place)
		if served {
			err = a.read(ctx, k.place.Path(), url.Values{"resourceVersion": {"0"}}, mediaMetadata, &list)
		}
		switch {
		case apierrors.IsForbidden(err):
			issues = append(issues, object.Issue("this kind is not read, and whether there are any cannot be told: "+err.Error()))
			continue
		case err != nil:
			return nil, err
		}
		var names []string
		for i := range list.Items {
			names = append(names, model.Name{Namespace: list.Items[i].Namespace, Name: list.Items[i].Name}.String())
		}
		if len(names) > 0 {
			i := object.Issue(model.FirstFew(names, 5) + ": this kind is not read; write what is needed as a " + k.instead)
			i.InForce = model.InForceNothing
			issues = append(issues, i)
		}
	}
	return issues, nil
}

// serves asks whether the API serves a resource. A user who may not even ask is told of nothing.
func (a *api) serves(ctx context.Context, r kinds.Resource) (bool, error) {
	var list metav1.APIResourceList
	err := a.read(ctx, "/apis/"+r.APIVersion(), nil, mediaJSON, &list)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask which kinds of %s there are: %w", r.APIVersion(), err)
	}
	return slices.ContainsFunc(list.APIResources, func(s metav1.APIResource) bool { return s.Name == r.Plural }), nil
}
