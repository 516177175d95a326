package lint

import (
	"fmt"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// absent says of an object that no file has one of a kind that it names.
var absent = map[model.Kind]string{
	model.TierKind:      "spec.tier: it waits for %s, which no file has",
	model.BGPFilterKind: "spec.filters: it waits for %s, which no file has",
	model.ServiceKind:   "its rules name %s, which no file has: by it they match nothing",
}

// Waiting returns what policies and BGPPeers of the view name of which declared reports nothing,
// sorted by object: Tiers and BGPFilters, for which they would wait, and Services.
func Waiting(v *store.View, declared func(model.Ref) bool) (list []model.Issue) {
	check := func(o model.Object) {
		store.Names(o, func(to model.Ref) {
			if !declared(to) {
				list = append(list, o.Ref().Issue(fmt.Sprintf(absent[to.Kind], to)))
			}
		})
	}
	for _, p := range v.Policies() {
		check(p)
	}
	for _, p := range v.BGPPeers() {
		check(p)
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
