package calico

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/utils/ptr"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

type ipPoolSpec struct {
	CIDR             string   `json:"cidr"`
	IPIPMode         string   `json:"ipipMode"`
	VXLANMode        string   `json:"vxlanMode"`
	NATOutgoing      bool     `json:"natOutgoing"`
	BlockSize        *int     `json:"blockSize"`
	NodeSelector     string   `json:"nodeSelector"`
	Disabled         bool     `json:"disabled"`
	DisableBGPExport bool     `json:"disableBGPExport"`
	AllowedUses      []string `json:"allowedUses"`
	AssignmentMode   string   `json:"assignmentMode"`
}

func ipPool(data []byte, f *fault.List) *model.IPPool {
	m, spec := open[ipPoolSpec](data, f)
	p := &model.IPPool{
		Name: m.Name, NATOutgoing: spec.NATOutgoing, Disabled: spec.Disabled, DisableBGPExport: spec.DisableBGPExport,
		IPIP: encapsulate("spec.ipipMode", spec.IPIPMode, f), VXLAN: encapsulate("spec.vxlanMode", spec.VXLANMode, f),
	}
	var err error
	if p.CIDR, err = model.ParsePodCIDR(spec.CIDR); err != nil {
		f.Reject("spec.cidr", "%v", err)
		return p
	}
	if p.IPIP != model.Never && p.VXLAN != model.Never {
		f.Reject("spec.vxlanMode", "only one of ipipMode and vxlanMode can be other than Never")
	}
	if p.IPIP != model.Never && p.CIDR.Addr().Is6() {
		f.Reject("spec.ipipMode", "IPIP carries no IPv6; use vxlanMode")
	}
	p.BlockSize = blockSize(spec.BlockSize, p.CIDR, f)
	p.Nodes = fault.Read(f, "spec.nodeSelector", spec.NodeSelector, ParseSelector)
	p.OfServices = slices.Equal(spec.AllowedUses, []string{"LoadBalancer"})
	for i, use := range spec.AllowedUses {
		if use != "Workload" && use != "Tunnel" && !p.OfServices {
			f.Reject(fmt.Sprintf("spec.allowedUses[%d]", i), "%q is not supported; what is: Workload and Tunnel, or LoadBalancer alone", use)
		}
	}
	if spec.AssignmentMode != "" && spec.AssignmentMode != "Automatic" {
		f.Reject("spec.assignmentMode", "%q is not supported; what is: Automatic", spec.AssignmentMode)
	}
	return p
}

// blockSize is the length of the prefixes that a pool is shared out in.
func blockSize(size *int, pool netip.Prefix, f *fault.List) int {
	bits, least, most := 26, 20, 32
	if pool.Addr().Is6() {
		bits, least, most = 122, 116, 128
	}
	bits = ptr.Deref(size, bits)
	if bits < least || bits > most {
		f.Reject("spec.blockSize", "%d is not from %d to %d", bits, least, most)
	} else if bits < pool.Bits() {
		f.Reject("spec.blockSize", "a block of /%d is larger than the pool %s", bits, pool)
	}
	return bits
}

func encapsulate(field, mode string, f *fault.List) model.Encapsulate {
	for e := model.Never; e <= model.Always; e++ {
		if cmp.Or(mode, "Never") == e.String() {
			return e
		}
	}
	f.Reject(field, "%q is none of Always, CrossSubnet and Never", mode)
	return model.Never
}
