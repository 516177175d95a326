package compile

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/admission"
	"sluice.dev/sluice/internal/policy/compile/objects"
	"sluice.dev/sluice/internal/store"
)

// Labels returns all that selectors can ask of a pod, network set or host endpoint.
func Labels(v *store.View, o model.Object) model.Labels { return objects.LabelsOf(v, o) }

// View is a policy as people see it on this node.
type View struct {
	Kind      model.Kind `json:"kind"`
	Namespace string     `json:"namespace,omitempty"`
	Name      string     `json:"name"`
	Tier      string     `json:"tier"`            // that it is evaluated in
	Order     *float64   `json:"order,omitempty"` // nil: after all that have one
	// Pods and HostEndpoints of this node that it selects.
	Pods          int    `json:"pods"`
	HostEndpoints int    `json:"hostEndpoints"`
	Refused       string `json:"refused,omitempty"` // why it denies all that it selects; a NetworkPolicy only isolates it
}

// Views returns all policies as of the last Update, in the order in which packets meet them.
func (c *Compiler) Views() []View {
	views := make([]View, 0, len(c.policies.all))
	pods, hosts := map[*policy]int{}, map[*policy]int{}
	for ref, e := range c.endpoints.all {
		count := pods
		if ref.Kind == model.HostEndpointKind {
			count = hosts
		}
		for _, p := range c.policies.applying(e.item.Labels) {
			count[p]++
		}
	}
	for _, p := range slices.SortedFunc(maps.Values(c.policies.all), comparePolicies) {
		v := View{
			Kind: p.obj.Key.Kind, Namespace: p.obj.Key.Name.Namespace, Name: p.obj.Key.Name.Name,
			Tier: p.tier.Name, Pods: pods[p], HostEndpoints: hosts[p], Refused: p.obj.Refused,
		}
		if !math.IsInf(p.obj.Order, 0) && !math.IsNaN(p.obj.Order) {
			v.Order = &p.obj.Order
		}
		views = append(views, v)
	}
	return views
}

// Issues returns what is wrong with the objects as of the last Update, sorted by object.
func (c *Compiler) Issues() []model.Issue {
	var all []model.Issue
	add := func(object model.Ref, reason string, args ...any) {
		all = append(all, object.Issue(fmt.Sprintf(reason, args...)))
	}
	for key, p := range c.policies.all {
		if p.fault != "" {
			add(key, "%s; until then it allows nothing", p.fault)
			all[len(all)-1].Everywhere = true
		}
		for _, variant := range p.variants {
			if variant == nil {
				continue
			}
			if variant.lookups > admission.MaxSize {
				add(key, "%s", admission.TooManyLookups(variant.lookups))
			}
			if why := c.sets.Refused(&variant.Rules); why != "" {
				add(key, "%s", why)
			}
			switch variant.progress {
			case refusedAlone:
				add(key, "%s", c.variants.limits.TooManyAlone())
			case refusedTogether:
				add(key, "%s", c.variants.limits.TooManyTogether(key.Name.Namespace))
			}
		}
		for _, set := range p.refused {
			add(key, "%s", refusedReason(set.Set))
		}
	}
	for a, claims := range c.endpoints.claims {
		winner := c.endpoints.owner(a)
		for _, e := range claims {
			if e != winner {
				add(model.Ref{Kind: model.PodKind, Name: e.item.Pod.Name}, "address %s is Pod %s's too, whose policies hold there; delete one of them", a, winner.item.Pod.Name)
			}
		}
	}
	for _, name := range c.cfg.DenyLists {
		if it := c.objects.Sets[listKey(name)]; it == nil {
			add(listKey(name), "is to be denied and is not known: name its file with --address-list %s=FILE", name)
		} else if it.Set.Refused != "" {
			add(listKey(name), "is to be denied, and nothing is, as nobody knows what is in it: %s", it.Set.Refused)
		}
	}
	for _, name := range c.cfg.DenyDevices {
		if c.links.known && !slices.ContainsFunc(c.links.Links.Links, func(l model.Link) bool { return l.Name == name }) {
			all = append(all, model.Ref{Kind: "interface", Name: model.Name{Name: name}}.Issue("is named by --deny-device and this node has no interface of that name, so no deny list holds there"))
		}
	}
	all = append(all, c.endpoints.hosts.issues()...)
	slices.SortFunc(all, model.Issue.Compare)
	return slices.Compact(all)
}
