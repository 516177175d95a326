package manifest

import (
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kubeobj"
)

// policy translates one of Kubernetes' policies. That a key of it was given twice
// before it became JSON makes it refused, too.
func (p *parser) policy(kind model.Kind, text []byte) (model.Name, any, error) {
	decode := kubeobj.DecodeNetworkPolicy
	if kind == model.ClusterPolicy {
		decode = kubeobj.DecodeClusterNetworkPolicy
	}
	name, policy, err := decode(text, p.twice)
	if policy == nil {
		return name, nil, err
	}
	return name, policy, err
}
