package cni

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// config is the network configuration of this plugin, as a runtime passes it on.
type config struct {
	types.PluginConf
	MTU   int          `json:"mtu"` // 0: that of the underlay
	Agent *agentConfig `json:"agent"`

	RuntimeConfig struct {
		MAC string `json:"mac"`
	} `json:"runtimeConfig"`
}

// agentConfig says which agent is to know of containers. Without one, nobody is.
type agentConfig struct {
	Socket  string   `json:"socket"`
	Timeout duration `json:"timeout"` // how long ADD waits for it
}

// duration is a time.Duration, written as "10s".
type duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *duration) UnmarshalText(text []byte) error {
	t, err := time.ParseDuration(string(text))
	if err == nil && t <= 0 {
		err = fmt.Errorf("%s is no time to wait", text)
	}
	*d = duration(t)
	return err
}

// defaultTimeout is how long ADD waits for the agent unless the configuration says something else.
const defaultTimeout = 10 * time.Second

// fields are the keys that a configuration may have, and those of its parts. What has a dot or a
// slash is somebody else's. An IPAM plugin that is another program has fields of its own.
var fields = map[string][]string{
	"":              {"cniVersion", "name", "type", "capabilities", "ipam", "dns", "prevResult", "runtimeConfig", "args", "mtu", "agent"},
	"agent":         {"socket", "timeout"},
	"capabilities":  {"ips", "mac", "ipRanges"},
	"runtimeConfig": {"ips", "mac", "ipRanges"},
	"ipam":          {"type", "podCIDRs", "ranges", "subnet", "rangeStart", "rangeEnd", "gateway", "routes", "dataDir"},
}

// parse reads a configuration. It refuses what the plugin does not know, as a limit that is
// mistyped would not hold.
func parse(stdin []byte) (*config, error) {
	var c config
	if err := json.Unmarshal(stdin, &c); err != nil {
		return nil, fault(types.ErrDecodingFailure, "read the network configuration: mend it where it is written, as in /etc/cni/net.d", err)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(stdin, &raw); err != nil {
		return nil, fault(types.ErrDecodingFailure, "read the network configuration", err)
	}
	for part, known := range fields {
		if part == "ipam" && c.IPAM.Type != "host-local" {
			continue
		}
		of, path := raw, ""
		if part != "" {
			of, path = nil, part+"."
			if raw[part] != nil {
				_ = json.Unmarshal(raw[part], &of) // config and the IPAM say what is wrong with it
			}
		}
		for key, value := range of {
			if !slices.Contains(known, key) && !strings.ContainsAny(key, "./") {
				return nil, fault(types.ErrUnsupportedField, fmt.Sprintf("the network configuration has %s%s: %s, which sluice-cni does not know: leave it out, or chain the plugin that does it; known are %s",
					path, key, value, strings.Join(known, ", ")), nil)
			}
		}
	}
	if c.Agent != nil && c.Agent.Socket == "" {
		return nil, fault(types.ErrInvalidNetworkConfig, "agent.socket is missing: name the agent's socket, as in /run/sluice/sluice.sock, or leave out agent", nil)
	}
	if c.MTU != 0 && (c.MTU < 576 || c.MTU > 65535) {
		return nil, fault(types.ErrInvalidNetworkConfig, fmt.Sprintf("mtu: %d: it is 576 to 65535, 1280 at least for IPv6; leave it out for that of the underlay", c.MTU), nil)
	}
	if err := version.ParsePrevResult(&c.PluginConf); err != nil {
		return nil, fault(types.ErrDecodingFailure, "read prevResult", err)
	}
	return &c, nil
}

// wait is how long ADD waits for the agent.
func (c *agentConfig) wait() time.Duration {
	if c.Timeout == 0 {
		return defaultTimeout
	}
	return time.Duration(c.Timeout)
}

// pod is what a runtime says of a container with CNI_ARGS.
type pod struct {
	types.CommonArgs
	K8S_POD_NAMESPACE, K8S_POD_NAME, MAC types.UnmarshallableString
}

func podOf(args *skel.CmdArgs) (p pod, err error) {
	p.IgnoreUnknown = true
	if err := types.LoadArgs(args.Args, &p); err != nil {
		return p, fault(types.ErrInvalidEnvironmentVariables, "read CNI_ARGS="+args.Args+": it is KEY=VALUE;KEY=VALUE", err)
	}
	return p, nil
}

// alias describes the node's end of a container's pair to people.
func (p *pod) alias(args *skel.CmdArgs) string {
	if p.K8S_POD_NAME == "" {
		return args.ContainerID
	}
	return string(p.K8S_POD_NAMESPACE + "/" + p.K8S_POD_NAME)
}

// mac is the hardware address that a container is to have; nil: any.
func (c *config) mac(p *pod) (net.HardwareAddr, error) {
	text, where := c.RuntimeConfig.MAC, "runtimeConfig.mac"
	code := types.ErrInvalidNetworkConfig
	if text == "" {
		text, where, code = string(p.MAC), "MAC in CNI_ARGS", types.ErrInvalidEnvironmentVariables
	}
	if text == "" {
		return nil, nil
	}
	mac, err := net.ParseMAC(text)
	if err == nil && (len(mac) != 6 || mac[0]&1 != 0 || bytes.Equal(mac, make([]byte, 6))) {
		err = fmt.Errorf("%s is no Ethernet address of one interface", text)
	}
	if err != nil {
		return nil, fault(code, where, err)
	}
	return mac, nil
}

// group is the group that the node's ends of a network's pairs are in.
func group(network string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(network))   // never fails
	return h.Sum32()&^(1<<31) | 1<<30 // far from the numbers that people choose, and positive where it is printed
}

// fault makes an error of the specification. What says what to do; err is why, if there is more.
func fault(code uint, what string, err error) *types.Error {
	if err == nil {
		return types.NewError(code, what, "")
	}
	return types.NewError(code, what, err.Error())
}

// addrOf is an address as packets have it; invalid if ip is none.
func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
