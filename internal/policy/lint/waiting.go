package lint

import (
	"fmt"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// Waiting returns what policies and BGPPeers of the view name of which declared reports nothing,
// sorted by object: Tiers and BGPFilters, for which they would wait, and Services.
func Waiting(v *store.View, declared func(model.Ref) bool) (list []model.Issue) {
	add := func(of model.Ref, field string, kind model.Kind, name string) {
		if to := (model.Ref{Kind: kind, Name: model.Name{Name: name}}); !declared(to) {
			list = append(list, of.Issue(fmt.Sprintf("%s: it waits for %s, which no file has", field, to)))
		}
	}
	for _, p := range v.Policies() {
		if model.BuiltInTier(p.Tier) == nil {
			add(p.Key, "spec.tier", model.TierKind, p.Tier)
		}
		for name := range p.Services {
			if to := (model.Ref{Kind: model.ServiceKind, Name: name}); !declared(to) {
				list = append(list, p.Key.Issue(fmt.Sprintf("its rules name %s, which no file has: by it they match nothing", to)))
			}
		}
	}
	for _, p := range v.BGPPeers() {
		for _, name := range p.Filters {
			add(p.Ref(), "spec.filters", model.BGPFilterKind, name)
		}
	}
	slices.SortFunc(list, model.Issue.Compare)
	return slices.Compact(list)
}

// WithoutPool returns which advertisements name IPAddressPools of which declared reports none,
// sorted by object.
func WithoutPool(v *store.View, declared func(model.Ref) bool) (list []model.Issue) {
	add := func(of model.Ref, ad *model.Advertised) {
		for _, name := range ad.Pools {
			if pool := (model.Ref{Kind: model.IPAddressPoolKind, Name: model.Name{Namespace: of.Name.Namespace, Name: name}}); !declared(pool) {
				list = append(list, of.Issue(fmt.Sprintf("spec.ipAddressPools: it announces nothing of %s, which no file has", pool)))
			}
		}
	}
	for _, a := range v.L2Advertisements() {
		add(a.Ref(), &a.Advertised)
	}
	for _, a := range v.BGPAdvertisements() {
		add(a.Ref(), &a.Advertised)
	}
	slices.SortFunc(list, model.Issue.Compare)
	return slices.Compact(list)
}
