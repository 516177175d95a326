package config

import (
	"context"
	"slices"

	"sluice.dev/sluice/internal/lib/cow"
	"sluice.dev/sluice/internal/model"
)

// document is what there is now.
func (s *Source) document() *document {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.doc
}

func (s *Source) printFarms(_ context.Context, name string) (*printer, error) {
	views := s.viewFarms(name)
	if views == nil && name != "" {
		return nil, &failure{404, "invalid request"}
	}
	return printDocument("farms", views, (*printer).farm), nil
}

// viewFarms takes a snapshot of a farm, or of all.
func (s *Source) viewFarms(name string) (views []*farmFields) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	now := s.now()
	for _, f := range chosen(s.doc.farms, name) {
		v := &farmFields{farm: f, effective: s.found.effective(f, now), reasons: s.found.reasons(f.name)}
		v.level = model.Level(v.effective.Backends)
		for _, a := range f.addresses {
			v.at = append(v.at, &addressFields{address: s.doc.addresses.Get(a), used: s.doc.farmsAt.Get(a).Len()})
		}
		if len(v.at) > 0 {
			v.first = v.at[0]
		}
		views = append(views, v)
	}
	return views
}

// chosen returns the object of a name, if there is one; without a name, all.
func chosen[O named[O]](objects cow.Map[string, O], name string) []O {
	var none O
	if one := objects.Get(name); one != none {
		return []O{one}
	}
	if name != "" {
		return nil
	}
	return ordered(objects)
}

func (s *Source) printPolicies(_ context.Context, name string) (*printer, error) {
	doc := s.document()
	return printDocument("policies", chosen(doc.policies, name), func(p *printer, l *policy) {
		p.policy(&policyFields{policy: l, used: doc.used(l.name)})
	}), nil
}

func (s *Source) printAddresses(_ context.Context, name string) (*printer, error) {
	doc := s.document()
	return printDocument("addresses", chosen(doc.addresses, name), func(p *printer, a *address) {
		p.address(&addressFields{address: a, used: doc.farmsAt.Get(a.name).Len()})
	}), nil
}

// printSessions prints the static sessions of a farm, then the live ones.
func (s *Source) printSessions(ctx context.Context, name string) (*printer, error) {
	f := s.document().farms.Get(name)
	if f == nil {
		return nil, errNoPath
	}
	all := slices.Clone(f.sessions)
	if s.kernel != nil && f.given.Persist != 0 && served(f) != nil {
		live, err := s.kernel.Sessions(ctx, name)
		if err != nil {
			return nil, &failure{503, "read sessions: " + err.Error()}
		}
		for _, l := range live {
			backend := "UNDEFINED"
			if f.find(l.Backend) >= 0 {
				backend = l.Backend
			}
			all = append(all, session{clientText(f.given.Persist, l.Client), backend, expiration(l.Left)})
		}
	}
	return printDocument("sessions", all, (*printer).session), nil
}
