package metallb

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

type bgpSpec struct {
	advertised
	AggregationLength   *int     `json:"aggregationLength"`
	AggregationLengthV6 *int     `json:"aggregationLengthV6"`
	LocalPref           uint32   `json:"localPref"`
	Communities         []string `json:"communities"`
	Peers               []string `json:"peers"`
}

// BGPAdvertisement translates a BGPAdvertisement.
func BGPAdvertisement(text []byte, also error) (*model.BGPAdvertisement, error) {
	return decode(text, also, func(o *resource[bgpSpec], name model.Name, f *fault.List) *model.BGPAdvertisement {
		a := &model.BGPAdvertisement{
			Name: name, Created: o.CreationTimestamp.UTC(), Advertised: o.Spec.translate(f),
			LocalPref: o.Spec.LocalPref, Communities: o.Spec.Communities, Peers: o.Spec.Peers,
			Length4: ptr.Deref(o.Spec.AggregationLength, 32), Length6: ptr.Deref(o.Spec.AggregationLengthV6, 128),
		}
		if a.Length4 < 1 || a.Length4 > 32 {
			f.Reject("spec.aggregationLength", "%d is not from 1 to 32", a.Length4)
		}
		if a.Length6 < 1 || a.Length6 > 128 {
			f.Reject("spec.aggregationLengthV6", "%d is not from 1 to 128", a.Length6)
		}
		if len(o.Spec.ServiceSelectors) > 0 && (a.Length4 != 32 || a.Length6 != 128) {
			f.Reject("spec.serviceSelectors", "cannot be beside an aggregationLength: a prefix holds the addresses of other Services, too")
		}
		for i, c := range a.Communities {
			if err := checkCommunity(c); err != nil && strings.Contains(c, ":") { // others are names
				f.Reject(fmt.Sprintf("spec.communities[%d]", i), "%v", err)
			}
		}
		return a
	})
}

// checkCommunity checks that a text is "64500:1" or "large:64500:1:2".
func checkCommunity(text string) error {
	numbers, isLarge := strings.CutPrefix(text, "large:")
	community, err := model.ParseCommunity(numbers)
	if err != nil || isLarge != strings.HasPrefix(community, "large:") {
		return fmt.Errorf("%q is no community such as 64500:1 or large:64500:1:2", text)
	}
	return nil
}

type communitySpec struct {
	Communities []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"communities"`
}

// Community translates a Community.
func Community(text []byte, also error) (*model.Community, error) {
	return decode(text, also, func(o *resource[communitySpec], name model.Name, f *fault.List) *model.Community {
		c := &model.Community{Name: name, Aliases: map[string]string{}}
		for i, alias := range o.Spec.Communities {
			field := fmt.Sprintf("spec.communities[%d]", i)
			if _, twice := c.Aliases[alias.Name]; twice || alias.Name == "" {
				f.Reject(field+".name", "%q is missing, or there twice", alias.Name)
			}
			if err := checkCommunity(alias.Value); err != nil {
				f.Reject(field+".value", "%v", err)
			}
			c.Aliases[alias.Name] = alias.Value
		}
		return c
	})
}

type peerSpec struct {
	MyASN                  uint32                 `json:"myASN"`
	ASN                    uint32                 `json:"peerASN"`
	LocalASN               uint32                 `json:"localASN"`
	DynamicASN             string                 `json:"dynamicASN"`
	Address                string                 `json:"peerAddress"`
	Interface              string                 `json:"interface"`
	SrcAddress             string                 `json:"sourceAddress"`
	Port                   uint16                 `json:"peerPort"`
	HoldTime               *metav1.Duration       `json:"holdTime"`
	KeepaliveTime          *metav1.Duration       `json:"keepaliveTime"`
	ConnectTime            *metav1.Duration       `json:"connectTime"`
	RouterID               string                 `json:"routerID"`
	NodeSelectors          []metav1.LabelSelector `json:"nodeSelectors"`
	Password               string                 `json:"password"`
	PasswordSecret         corev1.SecretReference `json:"passwordSecret"`
	BFDProfile             string                 `json:"bfdProfile"`
	EnableGracefulRestart  bool                   `json:"enableGracefulRestart"`
	EBGPMultiHop           bool                   `json:"ebgpMultiHop"`
	VRFName                string                 `json:"vrf"`
	DisableMP              bool                   `json:"disableMP"` // as it is anyway
	DualStackAddressFamily bool                   `json:"dualStackAddressFamily"`
}

// BGPPeer translates a BGPPeer of v1beta2.
func BGPPeer(text []byte, also error) (*model.MetalLBPeer, error) {
	return decode(text, also, func(o *resource[peerSpec], name model.Name, f *fault.List) *model.MetalLBPeer {
		s := &o.Spec
		p := &model.MetalLBPeer{
			Name: name, Created: o.CreationTimestamp.UTC(), MyASN: s.MyASN, PeerASN: s.ASN, Dynamic: s.DynamicASN, Port: cmp.Or(s.Port, 179), Password: s.Password,
			GracefulRestart: s.EnableGracefulRestart, MultiHop: s.EBGPMultiHop, DualStack: s.DualStackAddressFamily,
			HoldTime: duration(s.HoldTime), KeepaliveTime: duration(s.KeepaliveTime), ConnectTime: duration(s.ConnectTime),
			Address: address("spec.peerAddress", s.Address, f), Source: address("spec.sourceAddress", s.SrcAddress, f), RouterID: address("spec.routerID", s.RouterID, f),
			Nodes: selected(s.NodeSelectors, "spec.nodeSelectors", f),
		}
		s.check(f)
		if secret := s.PasswordSecret; secret.Name != "" {
			p.PasswordSecret = model.SecretRef{Namespace: cmp.Or(secret.Namespace, name.Namespace), Name: secret.Name, Key: corev1.BasicAuthPasswordKey}
			if p.Password != "" {
				f.Reject("spec.passwordSecret", "cannot be beside password")
			}
		}
		if p.HoldTime != 0 && p.HoldTime < 3*time.Second {
			f.Reject("spec.holdTime", "%v is shorter than 3s", p.HoldTime)
		}
		if p.KeepaliveTime > p.HoldTime && p.HoldTime != 0 {
			f.Reject("spec.keepaliveTime", "%v is longer than holdTime, %v", p.KeepaliveTime, p.HoldTime)
		}
		return p
	})
}

// check names what a peer lacks, and what it asks for that nobody carries out.
func (s *peerSpec) check(f *fault.List) {
	if s.MyASN == 0 {
		f.Reject("spec.myASN", "is missing")
	}
	switch {
	case s.DynamicASN != "" && s.DynamicASN != "internal" && s.DynamicASN != "external":
		f.Reject("spec.dynamicASN", "%q is neither internal nor external", s.DynamicASN)
	case (s.ASN == 0) == (s.DynamicASN == ""):
		f.Reject("spec.peerASN", "give either peerASN or dynamicASN")
	}
	if s.Address == "" && s.Interface == "" {
		f.Reject("spec.peerAddress", "is missing")
	}
	for field, value := range map[string]string{"interface": s.Interface, "vrf": s.VRFName} {
		if value != "" {
			f.Reject("spec."+field, "is not supported")
		}
	}
	if s.LocalASN != 0 {
		f.Reject("spec.localASN", "is not supported")
	}
	if s.BFDProfile != "" {
		f.Leave("spec.bfdProfile", "BFD is not supported; the peer is watched by its hold time alone")
	}
}

func duration(d *metav1.Duration) time.Duration { return ptr.Deref(d, metav1.Duration{}).Duration }

// address reads an address that may be missing.
func address(field, text string, f *fault.List) netip.Addr {
	if text == "" {
		return netip.Addr{}
	}
	return fault.Read(f, field, text, model.ParseAddr)
}
