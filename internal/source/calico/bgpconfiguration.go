package calico

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

type bgpConfigurationSpec struct {
	ASNumber               json.RawMessage  `json:"asNumber"`
	ListenPort             *int             `json:"listenPort"`
	NodeToNodeMeshEnabled  *bool            `json:"nodeToNodeMeshEnabled"`
	NodeMeshPassword       *bgpPassword     `json:"nodeMeshPassword"`
	NodeMeshMaxRestartTime *metav1.Duration `json:"nodeMeshMaxRestartTime"`
	BindMode               string           `json:"bindMode"`
	ServiceClusterIPs      []cidrBlock      `json:"serviceClusterIPs"`
	ServiceExternalIPs     []cidrBlock      `json:"serviceExternalIPs"`
	ServiceLoadBalancerIPs []cidrBlock      `json:"serviceLoadBalancerIPs"`
	Aggregation            string           `json:"serviceLoadBalancerAggregation"`
	Communities            []bgpCommunity   `json:"communities"`
	PrefixAdvertisements   []bgpAdvertised  `json:"prefixAdvertisements"`
	// These make no difference here: flags say what is logged, routes of interfaces are not
	// announced anyway, one agent sets all routes, and pods are no peers.
	LogSeverityScreen    string   `json:"logSeverityScreen"`
	IgnoredInterfaces    []string `json:"ignoredInterfaces"`
	ProgramClusterRoutes string   `json:"programClusterRoutes"`
	LocalPeeringIPv4     string   `json:"localWorkloadPeeringIPV4"`
	LocalPeeringIPv6     string   `json:"localWorkloadPeeringIPV6"`
	NormalPriority4      *int     `json:"ipv4NormalRoutePriority"`
	NormalPriority6      *int     `json:"ipv6NormalRoutePriority"`
}

type cidrBlock struct {
	CIDR string `json:"cidr"`
}

type bgpCommunity struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type bgpAdvertised struct {
	CIDR        string   `json:"cidr"`
	Communities []string `json:"communities"`
}

// bgpPassword is a key of a Secret.
type bgpPassword struct {
	SecretKeyRef *struct {
		Name     string `json:"name"`
		Key      string `json:"key"`
		Optional bool   `json:"optional"` // without it there is no password, which nobody wants
	} `json:"secretKeyRef"`
}

func bgpConfiguration(data []byte, f *fault.List) *model.BGPConfiguration {
	m, spec := open[bgpConfigurationSpec](data, f)
	c := &model.BGPConfiguration{
		Name: m.Name, AS: asNumber("spec.asNumber", spec.ASNumber, f), Port: number[uint16]("spec.listenPort", spec.ListenPort, 1, 65535, f),
		NoMesh: spec.NodeToNodeMeshEnabled != nil && !*spec.NodeToNodeMeshEnabled, MeshPassword: spec.NodeMeshPassword.ref("spec.nodeMeshPassword", f),
		MeshRestart: restartTime("spec.nodeMeshMaxRestartTime", spec.NodeMeshMaxRestartTime, f),
		NodeIP:      oneOf("spec.bindMode", spec.BindMode, f, "None", "NodeIP") == "NodeIP",
		ClusterIPs:  blocks("spec.serviceClusterIPs", spec.ServiceClusterIPs, f), ExternalIPs: blocks("spec.serviceExternalIPs", spec.ServiceExternalIPs, f),
		LoadBalancerIPs:    blocks("spec.serviceLoadBalancerIPs", spec.ServiceLoadBalancerIPs, f),
		EachLoadBalancerIP: oneOf("spec.serviceLoadBalancerAggregation", spec.Aggregation, f, "Enabled", "Disabled") == "Disabled",
	}
	c.Communities, c.Advertisements = spec.communities(f)
	switch {
	case strings.HasPrefix(c.Name, model.BGPNodePrefix):
		spec.checkNode(c, f)
	case c.Name != model.BGPDefault:
		f.Reject("metadata.name", "%q is neither %s nor %sNAME with the name of a node: nobody would follow it", c.Name, model.BGPDefault, model.BGPNodePrefix)
	}
	return c
}

// checkNode refuses in the BGPConfiguration of one node what holds for all.
func (s *bgpConfigurationSpec) checkNode(c *model.BGPConfiguration, f *fault.List) {
	for _, field := range []struct {
		name  string
		given bool
	}{
		{"nodeToNodeMeshEnabled", s.NodeToNodeMeshEnabled != nil}, {"nodeMeshPassword", s.NodeMeshPassword != nil}, {"nodeMeshMaxRestartTime", c.MeshRestart != 0},
		{"bindMode", s.BindMode != ""}, {"serviceClusterIPs", c.ClusterIPs != nil}, {"serviceExternalIPs", c.ExternalIPs != nil},
		{"serviceLoadBalancerIPs", c.LoadBalancerIPs != nil}, {"serviceLoadBalancerAggregation", s.Aggregation != ""},
	} {
		if field.given {
			f.Aside("spec."+field.name, "can be in BGPConfiguration %s alone", model.BGPDefault)
		}
	}
}

// communities are the names of communities, and where they are announced.
func (s *bgpConfigurationSpec) communities(f *fault.List) (names map[string]string, list []model.PrefixAdvertisement) {
	for i, c := range s.Communities {
		field := fmt.Sprintf("spec.communities[%d]", i)
		value := fault.Read(f, field+".value", c.Value, model.ParseCommunity)
		if _, twice := names[c.Name]; twice || c.Name == "" || strings.Contains(c.Name, ":") {
			f.Reject(field+".name", "%q is no name, or is there twice", c.Name)
		}
		if names == nil {
			names = map[string]string{}
		}
		names[c.Name] = value
	}
	for i, a := range s.PrefixAdvertisements {
		field := fmt.Sprintf("spec.prefixAdvertisements[%d]", i)
		list = append(list, model.PrefixAdvertisement{
			CIDR: fault.Read(f, field+".cidr", a.CIDR, model.ParsePrefix), Communities: fault.ReadAll(f, field+".communities[%d]", a.Communities, communityOrName),
		})
	}
	return names, list
}

func communityOrName(text string) (string, error) {
	if !strings.Contains(text, ":") {
		return text, nil
	}
	return model.ParseCommunity(text)
}

func blocks(field string, in []cidrBlock, f *fault.List) []netip.Prefix {
	texts := make([]string, len(in))
	for i, b := range in {
		texts[i] = b.CIDR
	}
	return fault.ReadSome(f, field+"[%d].cidr", texts, model.ParsePrefix)
}

// asNumber reads a number, or a text such as "1.10"; 0: there is none.
func asNumber(field string, data json.RawMessage, f *fault.List) uint32 {
	text := strings.Trim(string(data), `"`)
	if text == "" || text == "null" {
		return 0
	}
	return fault.Read(f, field, text, model.ParseAS)
}

// number reads one of a range that may be missing.
func number[T uint8 | uint16](field string, n *int, least, most int, f *fault.List) T {
	if n == nil {
		return 0
	}
	if *n < least || *n > most {
		f.Reject(field, "%d is not from %d to %d", *n, least, most)
	}
	return T(*n)
}

// maxRestart is as long as BGP can say it.
const maxRestart = 4095 * time.Second

func restartTime(field string, d *metav1.Duration, f *fault.List) time.Duration {
	if d == nil {
		return 0
	}
	if d.Duration < time.Second || d.Duration > maxRestart {
		f.Reject(field, "%v is not from 1s to %v", d.Duration, maxRestart)
	}
	return d.Duration
}

// ref is the key that a password is in; the zero SecretRef: there is no password.
func (p *bgpPassword) ref(field string, f *fault.List) model.SecretRef {
	if p == nil {
		return model.SecretRef{}
	}
	if p.SecretKeyRef == nil || p.SecretKeyRef.Name == "" || p.SecretKeyRef.Key == "" {
		f.Reject(field+".secretKeyRef", "give the name of a Secret, and the key that the password is in")
		return model.SecretRef{}
	}
	return model.SecretRef{Name: p.SecretKeyRef.Name, Key: p.SecretKeyRef.Key}
}

// oneOf reads one of some values; the first is what counts if there is none.
func oneOf(field, text string, f *fault.List, values ...string) string {
	if text == "" {
		return values[0]
	}
	for _, v := range values {
		if text == v {
			return v
		}
	}
	f.Reject(field, "%q is none of %s", text, strings.Join(values, ", "))
	return values[0]
}
