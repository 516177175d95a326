package config

import (
	"context"

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
	p := &printer{}
	p.top('{', '}', func() {
		p.list("farms", func() {
			for i := range views {
				p.farm(&views[i])
			}
		})
	})
	return p, nil
}

// viewFarms takes a snapshot of a farm, or of all.
func (s *Source) viewFarms(name string) (views []farmView) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	now := s.now()
	for _, f := range s.chosenFarms(name) {
		v := farmView{farm: f, effective: s.found.effective(f, now), reasons: s.found.reasons(f.name)}
		for _, a := range f.addresses {
			v.addresses = append(v.addresses, &addressFields{address: s.doc.addresses.Get(a), used: s.doc.farmsAt.Get(a).Len()})
		}
		views = append(views, v)
	}
	return views
}

func (s *Source) chosenFarms(name string) []*farm {
	if name == "" {
		return ordered(s.doc.farms)
	}
	if f := s.doc.farms.Get(name); f != nil {
		return []*farm{f}
	}
	return nil
}

func (s *Source) printPolicies(_ context.Context, name string) (*printer, error) {
	doc, p := s.document(), &printer{}
	p.top('{', '}', func() {
		p.list("policies", func() {
			for _, l := range ordered(doc.policies) {
				if name == "" || l.name == name {
					p.policy(&policyFields{policy: l, used: doc.used(l.name)})
				}
			}
		})
	})
	return p, nil
}

func (s *Source) printAddresses(_ context.Context, name string) (*printer, error) {
	doc, p := s.document(), &printer{}
	p.top('{', '}', func() {
		p.list("addresses", func() {
			for _, a := range ordered(doc.addresses) {
				if name == "" || a.name == name {
					p.address(&addressFields{address: a, used: doc.farmsAt.Get(a.name).Len()})
				}
			}
		})
	})
	return p, nil
}

// printSessions prints the static sessions of a farm, then the live ones.
func (s *Source) printSessions(ctx context.Context, name string) (*printer, error) {
	f := s.document().farms.Get(name)
	if f == nil {
		return nil, errNoPath
	}
	var live []model.LiveSession
	if s.kernel != nil && f.persistence != 0 && served(f) != nil {
		var err error
		if live, err = s.kernel.Sessions(ctx, name); err != nil {
			return nil, &failure{503, "read sessions: " + err.Error()}
		}
	}
	p := &printer{}
	p.top('{', '}', func() {
		p.list("sessions", func() {
			p.sessions(f.sessions)
			for _, l := range live {
				p.liveSession(f, l)
			}
		})
	})
	return p, nil
}
