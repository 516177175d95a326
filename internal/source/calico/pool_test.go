package calico

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
)

func TestIPPool(t *testing.T) {
	pool := func(spec string) (*model.IPPool, error) {
		return IPPool([]byte(`{"apiVersion":"projectcalico.org/v3","kind":"IPPool","metadata":{"name":"pods"},"spec":{`+spec+`}}`), nil)
	}
	v4, v6 := netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")
	for spec, want := range map[string]model.IPPool{
		`"cidr":"10.244.0.0/16"`: {CIDR: v4, BlockSize: 26, Nodes: model.Everything()},
		`"cidr":"10.244.0.0/16","ipipMode":"Never","vxlanMode":"CrossSubnet","natOutgoing":true,"allowedUses":["Workload","Tunnel"],"assignmentMode":"Automatic","nodeSelector":"all()"`: {
			CIDR: v4, VXLAN: model.CrossSubnet, NATOutgoing: true, BlockSize: 26, Nodes: model.Everything()},
		`"cidr":"10.244.0.0/16","ipipMode":"Always","disabled":true,"disableBGPExport":true,"blockSize":24,"nodeSelector":"zone == 'a'"`: {
			CIDR: v4, IPIP: model.Always, BlockSize: 24, Nodes: model.Equal("zone", "a"), Disabled: true, DisableBGPExport: true},
		`"cidr":"10.244.0.0/16","allowedUses":["LoadBalancer"]`: {CIDR: v4, BlockSize: 26, Nodes: model.Everything(), OfServices: true},
		`"cidr":"fd00:10:244::/48","vxlanMode":"Always"`:        {CIDR: v6, VXLAN: model.Always, BlockSize: 122, Nodes: model.Everything()},
	} {
		want.Name = "pods"
		if got, err := pool(spec); err != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("%s: %+v, %v", spec, got, err)
		}
	}
	for spec, want := range map[string]string{
		``:                                       `spec.cidr: "" is no address range`,
		`"cidr":"169.254.1.0/24"`:                `spec.cidr: 169.254.1.0/24 has 169.254.1.0, a link-local address`,
		`"cidr":"10.244.0.0/40"`:                 `spec.cidr: "10.244.0.0/40" is no address range`,
		`"cidr":"10.244.0.0/16","ipipMode":"On"`: `spec.ipipMode: "On" is none of Always, CrossSubnet and Never`,
		`"cidr":"10.244.0.0/16","vxlanMode":"always"`:                      `spec.vxlanMode: "always" is none`,
		`"cidr":"10.244.0.0/16","ipipMode":"Always","vxlanMode":"Always"`:  `spec.vxlanMode: only one of`,
		`"cidr":"fd00::/48","ipipMode":"CrossSubnet"`:                      `spec.ipipMode: IPIP carries no IPv6`,
		`"cidr":"10.244.0.0/16","blockSize":19`:                            `spec.blockSize: 19 is not from 20 to 32`,
		`"cidr":"fd00::/120","blockSize":118`:                              `spec.blockSize: a block of /118 is larger`,
		`"cidr":"10.244.0.0/16","nodeSelector":"zone ="`:                   `spec.nodeSelector: at 6: expected ==`,
		`"cidr":"10.244.0.0/16","allowedUses":["Workload","LoadBalancer"]`: `spec.allowedUses[1]: "LoadBalancer" is not supported`,
		`"cidr":"10.244.0.0/16","assignmentMode":"Manual"`:                 `spec.assignmentMode: "Manual" is not supported`,
		`"cidr":"10.244.0.0/16","ipip":{"enabled":true}`:                   `spec.ipip: is not supported`,
	} {
		if got, err := pool(spec); got != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want %s", spec, got, err, want)
		}
	}
}

func TestBlockAffinity(t *testing.T) {
	block := func(spec string) (*model.BlockAffinity, error) {
		return BlockAffinity([]byte(`{"apiVersion":"crd.projectcalico.org/v1","kind":"BlockAffinity","metadata":{"name":"b"},"spec":{`+spec+`}}`), nil)
	}
	for spec, node := range map[string]string{
		`"cidr":"10.244.1.64/26","node":"a","state":"confirmed","deleted":"false"`:             "a",
		`"cidr":"10.244.1.64/26","node":"a","state":"confirmed","deleted":false,"type":"host"`: "a",
		`"cidr":"10.244.1.64/26","node":"a","state":"pendingDeletion","deleted":"false"`:       "",
		`"cidr":"10.244.1.64/26","node":"a","state":"confirmed","deleted":"true"`:              "",
		`"cidr":"10.244.1.64/26","node":"a","state":"confirmed","type":"virtual"`:              "",
	} {
		got, err := block(spec)
		if want := (model.BlockAffinity{Name: "b", CIDR: netip.MustParsePrefix("10.244.1.64/26"), Node: node}); err != nil || *got != want {
			t.Errorf("%s: %+v, %v", spec, got, err)
		}
	}
	for _, spec := range []string{`"node":"a"`, `"cidr":"fe80::/122","node":"a"`} {
		if got, err := block(spec); got != nil || err == nil || !strings.Contains(err.Error(), "spec.cidr") {
			t.Errorf("%s: %+v, %v", spec, got, err)
		}
	}
}
