package calico

import (
	"encoding/json"
	"fmt"
	"regexp"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

// allowProfile is the one profile that has a meaning here: what no policy
// selects is allowed.
const allowProfile = "projectcalico-default-allow"

type hostEndpointSpec struct {
	Node          string            `json:"node"`
	InterfaceName string            `json:"interfaceName"`
	ExpectedIPs   []string          `json:"expectedIPs"`
	Profiles      []string          `json:"profiles"`
	Ports         []json.RawMessage `json:"ports"`
}

// interfaceName is what Linux and Calico allow as the name of an interface.
var interfaceName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,15}$`)

func hostEndpoint(data []byte, f *fault.List) *model.HostEndpoint {
	m, spec := open[hostEndpointSpec](data, f)
	h := &model.HostEndpoint{Name: m.Name, Created: m.CreationTimestamp.UTC(), Node: spec.Node, Interface: spec.InterfaceName, Labels: m.Labels}
	checkName("spec.node", spec.Node, f)
	switch {
	case spec.InterfaceName == "" && len(spec.ExpectedIPs) == 0:
		f.Reject("spec.interfaceName", "is missing: give the name of an interface, or one of its addresses in expectedIPs")
	case spec.InterfaceName != "" && spec.InterfaceName != "*" && !interfaceName.MatchString(spec.InterfaceName):
		f.Reject("spec.interfaceName", "%q is no name of an interface, nor *", spec.InterfaceName)
	}
	h.Addresses = fault.ReadAll(f, "spec.expectedIPs[%d]", spec.ExpectedIPs, model.ParseAddr)
	for i, p := range spec.Profiles {
		if p != allowProfile {
			f.Reject(fmt.Sprintf("spec.profiles[%d]", i), "profile %q is not supported; the only one that is: %s", p, allowProfile)
		}
		h.DefaultAllow = true
	}
	if len(spec.Ports) > 0 {
		f.Reject("spec.ports", "named ports of host endpoints are not supported; write the numbers into the policies")
	}
	return h
}
