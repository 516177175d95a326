package calico

import (
	"cmp"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

type blockAffinitySpec struct {
	State   string `json:"state"`
	Node    string `json:"node"`
	CIDR    string `json:"cidr"`
	Type    string `json:"type"`
	Deleted any    `json:"deleted"` // a text where Calico stores it
}

func blockAffinity(data []byte, f *fault.List) *model.BlockAffinity {
	m, spec := open[blockAffinitySpec](data, f)
	b := &model.BlockAffinity{Name: m.Name, CIDR: fault.Read(f, "spec.cidr", spec.CIDR, model.ParsePodCIDR)}
	deleted := spec.Deleted == true || spec.Deleted == "true"
	if cmp.Or(spec.State, "confirmed") == "confirmed" && !deleted && cmp.Or(spec.Type, "host") == "host" {
		b.Node = spec.Node
	}
	return b
}
