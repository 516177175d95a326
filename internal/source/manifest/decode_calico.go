package manifest

import (
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/calico"
)

// calico translates one of Calico's objects, which reaches from start to here.
// Its name is the one that it is known by, or, where that can't be told, the one in the text.
func (p *parser) calico(kind model.Kind, start int) (model.Name, any, error) {
	end := p.pos()
	o, err := calico.Decode(calicoVersions[0], calicoKinds[kind], p.data[start:end])
	if err == nil && p.twice != nil {
		err = p.twice
		o = o.Refuse(err)
	}
	switch {
	case o.Policy != nil:
		return o.Policy.Key.Name, o.Policy, err
	case o.Tier != nil:
		return model.Name{Name: o.Tier.Name}, o.Tier, err
	case o.NetworkSet != nil:
		return o.NetworkSet.Key.Name, o.NetworkSet, err
	case o.HostEndpoint != nil:
		return model.Name{Name: o.HostEndpoint.Name}, o.HostEndpoint, err
	}
	name := p.identify(start, kind)
	p.seek(end)
	return name, nil, err
}
