package manifest

import (
	"encoding/json"
	"regexp"
	"strings"
	"sync"

	"sluice.dev/sluice/internal/source/kinds"
)

// typeOf is an apiVersion and a kind.
type typeOf struct{ apiVersion, kind string }

// kindEntry is a kind that gets read, or a list: of objects of any kind, or of those called item,
// which mostly don't say theirs.
type kindEntry struct {
	*kinds.Kind // nil for lists
	item        string
}

// types are all kinds that get read, and the lists of them.
var types = sync.OnceValue(func() map[typeOf]kindEntry {
	all := map[typeOf]kindEntry{{"v1", "List"}: {}}
	for i := range kinds.All {
		k := &kinds.All[i]
		for _, p := range k.Places {
			all[typeOf{p.APIVersion(), k.Name}] = kindEntry{Kind: k}
			all[typeOf{p.APIVersion(), k.Name + "List"}] = kindEntry{item: k.Name}
		}
	}
	return all
})

// isOurs tells whether a kind that gets read has this name, to tell another group's "Service"
// apart.
func isOurs(name string) bool {
	for i := range kinds.All {
		if kinds.All[i].Name == name {
			return true
		}
	}
	return false
}

// unread tells, of a kind that isn't read, whether it is a policy, an address pool or another
// version of a kind that is: nobody should think that it is in force. The result says what it has
// to be written as.
func unread(apiVersion, name string) (instead string, ok bool) {
	group, _, _ := strings.Cut(apiVersion, "/")
	switch {
	case group == "extensions" && name == "NetworkPolicy":
		return "networking.k8s.io/v1", true
	case group == "policy.networking.k8s.io" && (name == "AdminNetworkPolicy" || name == "BaselineAdminNetworkPolicy"):
		return "a ClusterNetworkPolicy of policy.networking.k8s.io/v1alpha2", true
	case group == "cilium.io" && (name == "CiliumNetworkPolicy" || name == "CiliumClusterwideNetworkPolicy"):
		return "a NetworkPolicy, a ClusterNetworkPolicy or one of Calico's", true
	case group == kinds.MetalLBGroup && name == "AddressPool":
		return "an IPAddressPool of metallb.io/v1beta1, and an L2Advertisement or BGPAdvertisement", true
	}
	for i := range kinds.All {
		for _, p := range kinds.All[i].Places {
			if kinds.All[i].Name == name && p.Group == group {
				return p.APIVersion(), true
			}
		}
	}
	return "", false
}

var addressPools = regexp.MustCompile(`(?m)^address-pools:`)

// configures reports whether the object that begins at start is the ConfigMap that MetalLB was
// configured by before there were its kinds.
func (p *parser) configures(apiVersion, kind string, start int) bool {
	if apiVersion != "v1" || kind != "ConfigMap" {
		return false
	}
	defer func() { p.pos = start }()
	var o struct{ Data struct{ Config string } }
	return p.skip() == nil && json.Unmarshal(p.data[start:p.pos], &o) == nil && addressPools.MatchString(o.Data.Config)
}
