package calico

import (
	"encoding/json"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

type bgpPeerSpec struct {
	Node         string          `json:"node"`
	NodeSelector string          `json:"nodeSelector"`
	PeerIP       string          `json:"peerIP"`
	ASNumber     json.RawMessage `json:"asNumber"`
	PeerSelector string          `json:"peerSelector"`

	LocalASNumber            json.RawMessage  `json:"localASNumber"`
	Password                 *bgpPassword     `json:"password"`
	SourceAddress            string           `json:"sourceAddress"`
	MaxRestartTime           *metav1.Duration `json:"maxRestartTime"`
	KeepaliveTime            *metav1.Duration `json:"keepaliveTime"`
	KeepOriginalNextHop      bool             `json:"keepOriginalNextHop"`
	NextHopMode              string           `json:"nextHopMode"`
	NumAllowedLocalASNumbers *int             `json:"numAllowedLocalASNumbers"`
	TTLSecurity              *int             `json:"ttlSecurity"`
	Filters                  []string         `json:"filters"`
	ReversePeering           string           `json:"reversePeering"`

	// Nobody carries these out.
	ReachableBy           string          `json:"reachableBy"`
	LocalWorkloadSelector string          `json:"localWorkloadSelector"`
	FailureDetectionMode  string          `json:"failureDetectionMode"`
	RestartMode           string          `json:"restartMode"`
	BIRDGatewayMode       string          `json:"birdGatewayMode"`
	ExternalNetwork       string          `json:"externalNetwork"`
	Extensions            json.RawMessage `json:"extensions"`
}

func bgpPeer(data []byte, f *fault.List) *model.BGPPeer {
	m, spec := open[bgpPeerSpec](data, f)
	p := &model.BGPPeer{
		Name: m.Name, Created: m.CreationTimestamp.UTC(), Node: spec.Node, AS: asNumber("spec.asNumber", spec.ASNumber, f), LocalAS: asNumber("spec.localASNumber", spec.LocalASNumber, f),
		Password: spec.Password.ref("spec.password", f), AnySource: oneOf("spec.sourceAddress", spec.SourceAddress, f, "UseNodeIP", "None") == "None",
		Restart: restartTime("spec.maxRestartTime", spec.MaxRestartTime, f), Filters: spec.Filters,
		OneWay:     oneOf("spec.reversePeering", spec.ReversePeering, f, "Auto", "Manual") == "Manual",
		AllowOwnAS: number[uint8]("spec.numAllowedLocalASNumbers", spec.NumAllowedLocalASNumbers, 0, 255, f), Security: number[uint8]("spec.ttlSecurity", spec.TTLSecurity, 0, 255, f),
	}
	p.KeepNextHop = spec.keepNextHop(f)
	if p.Keepalive = ptr.Deref(spec.KeepaliveTime, metav1.Duration{}).Duration; p.Keepalive < 0 || p.Keepalive > maxKeepalive {
		f.Reject("spec.keepaliveTime", "%v is not from 0s to %v", p.Keepalive, maxKeepalive)
	}
	spec.whose(p, f)
	spec.whom(p, f)
	spec.refuse(f)
	return p
}

// maxKeepalive is a third of the longest hold time of BGP.
const maxKeepalive = 21845 * time.Second

// whose reads which nodes have the peer.
func (s *bgpPeerSpec) whose(p *model.BGPPeer, f *fault.List) {
	if s.NodeSelector == "" {
		return
	}
	if s.Node != "" {
		f.Reject("spec.nodeSelector", "cannot be beside node")
	}
	p.Nodes = fault.Read(f, "spec.nodeSelector", s.NodeSelector, ParseSelector)
}

// whom reads who the peer is.
func (s *bgpPeerSpec) whom(p *model.BGPPeer, f *fault.List) {
	switch {
	case s.PeerSelector != "" && s.PeerIP != "":
		f.Reject("spec.peerSelector", "cannot be beside peerIP")
	case s.PeerSelector != "" && p.AS != 0:
		f.Reject("spec.asNumber", "cannot be beside peerSelector: nodes have the AS that they say")
	case s.PeerSelector != "":
		p.Peers = fault.Read(f, "spec.peerSelector", s.PeerSelector, ParseSelector)
	case s.PeerIP == "":
		f.Reject("spec.peerIP", "is missing: give the address of the peer, or a peerSelector of nodes")
	case p.AS == 0:
		f.Reject("spec.asNumber", "is missing: give that of the peer")
	}
	if s.PeerIP != "" {
		var err error
		if p.Address, p.Port, err = peerAddress(s.PeerIP); err != nil || model.Unusable(p.Address) != "" {
			f.Reject("spec.peerIP", "%q is no address such as 192.0.2.1, 192.0.2.1:179, 2001:db8::1 or [2001:db8::1]:179", s.PeerIP)
		}
	}
}

// peerAddress reads an address that may have a port.
func peerAddress(text string) (netip.Addr, uint16, error) {
	if at, err := netip.ParseAddrPort(text); err == nil && at.Port() > 0 && at.Addr().Zone() == "" {
		return at.Addr().Unmap(), at.Port(), nil
	}
	a, err := model.ParseAddr(text)
	return a, 0, err
}

// keepNextHop reads whether routes that are passed on keep their next hop.
func (s *bgpPeerSpec) keepNextHop(f *fault.List) bool {
	if s.NextHopMode != "" && s.KeepOriginalNextHop {
		f.Reject("spec.nextHopMode", "cannot be beside keepOriginalNextHop")
	}
	if s.NextHopMode == "Self" {
		f.Aside("spec.nextHopMode", "Self is not supported; Auto has the own address as next hop towards peers of another AS")
		return false
	}
	return oneOf("spec.nextHopMode", s.NextHopMode, f, "Auto", "Keep") == "Keep" || s.KeepOriginalNextHop
}

// refuse names what nobody carries out, with what to do.
func (s *bgpPeerSpec) refuse(f *fault.List) {
	for _, field := range []struct{ name, value, what string }{
		{"reachableBy", s.ReachableBy, "take it out, and give the nodes a route to the peer"},
		{"localWorkloadSelector", s.LocalWorkloadSelector, "a pod cannot be a peer"},
		{"birdGatewayMode", s.BIRDGatewayMode, "take it out: next hops are looked up in the kernel's routes"},
		{"externalNetwork", s.ExternalNetwork, "all routes are in one table"},
		{"extensions", string(s.Extensions), "take it out"},
	} {
		if field.value != "" {
			f.Aside("spec."+field.name, "is not supported; %s", field.what)
		}
	}
	if s.FailureDetectionMode != "" && s.FailureDetectionMode != "None" {
		f.Aside("spec.failureDetectionMode", "%s is not supported: there is no BFD; take it out: the peer is watched by its hold time", s.FailureDetectionMode)
	}
	if s.RestartMode != "" && s.RestartMode != "GracefulRestart" {
		f.Aside("spec.restartMode", "%s is not supported; what is: GracefulRestart", s.RestartMode)
	}
}
