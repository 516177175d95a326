package agent

import "sluice.dev/sluice/internal/state"

// families are the address families as kube-proxy names them.
var families = [2]string{"IPv4", "IPv6"}

// familyLabel is kube-proxy's metric label for the address family.
var familyLabel = []string{"ip_family"}

// bothFamilies is what a full comparison covers.
var bothFamilies = [2]bool{true, true}

// familyOf is the index in families.
func familyOf(is4 bool) int {
	if is4 {
		return 0
	}
	return 1
}

// touched returns the families whose services a change affects.
func touched(d state.Delta) (which [2]bool) {
	if d.Services.Settings != nil {
		return bothFamilies
	}
	for key := range d.Services.Frontends {
		which[familyOf(key.Addr.Is4())] = true
		if which == bothFamilies {
			return which
		}
	}
	for addr := range d.Services.ClusterIPs {
		which[familyOf(addr.Is4())] = true
	}
	for addr := range d.Services.OtherIPs {
		which[familyOf(addr.Is4())] = true
	}
	for addr := range d.Services.Hairpins {
		which[familyOf(addr.Is4())] = true
	}
	return which
}
