package manifest

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"sync"

	"sluice.dev/sluice/internal/source/kinds"
)

// typeOf is an apiVersion and a kind.
type typeOf struct{ apiVersion, kind string }

// types are all kinds that get read.
var types = sync.OnceValue(func() map[typeOf]*kinds.Kind {
	all := map[typeOf]*kinds.Kind{}
	for i := range kinds.All {
		k := &kinds.All[i]
		for _, p := range k.Places {
			all[typeOf{p.APIVersion(), k.Name}] = k
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

// unreadKinds are kinds that somebody may think to be in force, with what they have to be written
// as.
var unreadKinds = []struct{ group, kinds, instead string }{
	{"extensions", "NetworkPolicy", "networking.k8s.io/v1"},
	{"policy.networking.k8s.io", "AdminNetworkPolicy BaselineAdminNetworkPolicy", "a ClusterNetworkPolicy of policy.networking.k8s.io/v1beta1"},
	{"cilium.io", "CiliumCIDRGroup", "a GlobalNetworkSet of projectcalico.org/v3"},
	{"cilium.io", "CiliumLoadBalancerIPPool", poolInstead},
	{"cilium.io", "CiliumL2AnnouncementPolicy", "an L2Advertisement of metallb.io/v1beta1"},
	{"cilium.io", "CiliumBGPPeeringPolicy CiliumBGPClusterConfig CiliumBGPPeerConfig CiliumBGPAdvertisement CiliumBGPNodeConfigOverride", "BGPPeers and a BGPConfiguration of projectcalico.org/v3"},
	{kinds.MetalLBGroup, "AddressPool", poolInstead + ", and an L2Advertisement or BGPAdvertisement"},
}

const poolInstead = "an IPAddressPool of metallb.io/v1beta1"

// nothing are the kinds, of groups of which others are read, that say nothing to Sluice:
// Kubernetes' own, and those in which other programs keep what they know.
var nothing = map[string]string{
	"":                  "Binding ComponentStatus ConfigMap Endpoints Event LimitRange PersistentVolume PersistentVolumeClaim PodTemplate ReplicationController ResourceQuota Secret",
	"networking.k8s.io": "IPAddress Ingress IngressClass ServiceCIDR",
	kinds.CalicoGroup:   calicoState,
	kinds.CalicoStored:  calicoState,
	kinds.MetalLBGroup:  "BGPSessionStatus ConfigurationState ServiceBGPStatus ServiceL2Status",
}

const calicoState = "CalicoNodeStatus ClusterInformation IPAMBlock IPAMConfig IPAMConfiguration IPAMHandle WorkloadEndpoint"

// unread says, of a kind that isn't read, why an object of it does nothing, where somebody may
// think that it does. A hint is what nobody will miss: settings of another program, and what nobody
// knows of a group of which other kinds are read. "" says that it is nothing to Sluice.
func unread(apiVersion, name string) (reason string, hint bool) {
	group, _, versioned := strings.Cut(apiVersion, "/")
	if !versioned {
		group = ""
	}
	for _, k := range unreadKinds {
		if k.group == group && slices.Contains(strings.Fields(k.kinds), name) {
			return insteadOf(k.instead), false
		}
	}
	read := false
	for i := range kinds.All {
		for _, p := range kinds.All[i].Places {
			if kinds.All[i].Name == name && p.Group == group {
				return insteadOf(p.APIVersion()), false
			}
			read = read || p.Group == group
		}
	}
	switch {
	case strings.HasPrefix(name, "Staged") && read:
		return "decides nothing, as in Calico; 'sluice preflight --policies' says what a policy would do", true
	case strings.HasSuffix(name, "NetworkPolicy"):
		return insteadOf("a NetworkPolicy, a ClusterNetworkPolicy or one of Calico's"), false
	case name == "FelixConfiguration" && read:
		return "has no effect, as Sluice does not read it: its settings are flags of 'sluice run'", true
	case read && !slices.Contains(strings.Fields(nothing[group]), name):
		return "has no effect, as Sluice does not read this kind", true
	}
	return "", false
}

func insteadOf(kind string) string {
	return "is not in force, as Sluice does not read it; write it as " + kind
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
