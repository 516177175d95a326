package kubeproxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/ptr"
)

// check finds what kube-proxy itself would refuse in a configuration whose defaults are filled in.
// Its errors name the fields as the file does.
func (c *Config) check() error {
	var errs faults
	errs.unless(slices.Contains([]string{ModeIPTables, ModeIPVS, ModeNFTables}, c.Mode), "mode",
		"%q is not %s, %s, %s or empty; in which mode Sluice serves is said by --mode", c.Mode, ModeIPTables, ModeIPVS, ModeNFTables)
	errs.within("iptables.masqueradeBit", c.IPTables.MasqueradeBit, 0, 31)
	if c.Mode == ModeNFTables {
		errs.within("nftables.masqueradeBit", c.NFTables.MasqueradeBit, 0, 31)
	}
	if c.Mode == ModeIPVS {
		c.checkIPVS(&errs)
	}
	errs.within("oomScoreAdj", c.OOMScoreAdj, -1000, 1000)
	errs.within("conntrack.maxPerCore", c.Conntrack.MaxPerCore, 0, 1<<31-1)
	errs.within("conntrack.min", c.Conntrack.Min, 0, 1<<31-1)
	errs.notNegative("conntrack.tcpEstablishedTimeout", c.Conntrack.TCPEstablishedTimeout.Duration)
	errs.notNegative("conntrack.tcpCloseWaitTimeout", c.Conntrack.TCPCloseWaitTimeout.Duration)
	errs.notNegative("conntrack.udpTimeout", c.Conntrack.UDPTimeout.Duration)
	errs.notNegative("conntrack.udpStreamTimeout", c.Conntrack.UDPStreamTimeout.Duration)
	errs.unless(c.ClientConnection.Burst >= 0, "clientConnection.burst", "%d is less than 0", c.ClientConnection.Burst)
	errs.unless(c.ConfigSyncPeriod.Duration > 0, "configSyncPeriod", "%s is not longer than 0", c.ConfigSyncPeriod.Duration)
	c.checkPeriods(&errs)
	_, err := parseAddr(c.BindAddress)
	errs.unless(err == nil, "bindAddress", "%q is no IP address", c.BindAddress)
	errs.hostPort("healthzBindAddress", c.HealthzBindAddress)
	errs.hostPort("metricsBindAddress", c.MetricsBindAddress)
	c.checkNodePorts(&errs)
	c.checkLocal(&errs)
	errs.unless(c.Logging.Format == "text" || c.Logging.Format == "json", "logging.format", "%q is neither text nor json", c.Logging.Format)
	return errors.Join(errs...)
}

func (c *Config) checkIPVS(errs *faults) {
	errs.notNegative("ipvs.tcpTimeout", c.IPVS.TCPTimeout.Duration)
	errs.notNegative("ipvs.tcpFinTimeout", c.IPVS.TCPFinTimeout.Duration)
	errs.notNegative("ipvs.udpTimeout", c.IPVS.UDPTimeout.Duration)
	for i, text := range c.IPVS.ExcludeCIDRs {
		_, err := netip.ParsePrefix(text)
		errs.unless(err == nil, fmt.Sprintf("ipvs.excludeCIDRs[%d]", i), "%q is no CIDR", text)
	}
}

func (c *Config) checkPeriods(errs *faults) {
	period, least, section := c.syncPeriods()
	errs.unless(period.Duration > 0, section+".syncPeriod", "%s is not longer than 0", period.Duration)
	errs.notNegative(section+".minSyncPeriod", least.Duration)
	errs.unless(least.Duration <= period.Duration, section+".minSyncPeriod", "%s is longer than %s.syncPeriod, %s", least.Duration, section, period.Duration)
}

func (c *Config) checkNodePorts(errs *faults) {
	for i, text := range c.NodePortAddresses {
		field := fmt.Sprintf("nodePortAddresses[%d]", i)
		switch text {
		case Primary, Localhost, All:
			errs.unless(!slices.Contains(c.NodePortAddresses[:i], text), field, "%q is there twice", text)
		default:
			_, err := netip.ParsePrefix(text)
			errs.unless(err == nil, field, "%q is neither a CIDR nor %s, %s or %s", text, Primary, Localhost, All)
		}
	}
}

func (c *Config) checkLocal(errs *faults) {
	switch c.DetectLocalMode {
	case LocalNodeCIDR:
	case LocalBridgeInterface:
		errs.unless(c.DetectLocal.BridgeInterface != "", "detectLocal.bridgeInterface", "name the bridge that detectLocalMode %s is about", c.DetectLocalMode)
	case LocalInterfaceNamePrefix:
		errs.unless(c.DetectLocal.InterfaceNamePrefix != "", "detectLocal.interfaceNamePrefix", "say how the interfaces' names begin that detectLocalMode %s is about", c.DetectLocalMode)
	case LocalClusterCIDR:
		cidrs, err := c.clusterCIDRs()
		switch {
		case err != nil:
			*errs = append(*errs, err)
		case len(cidrs) > 2, len(cidrs) == 2 && cidrs[0].Addr().Is4() == cidrs[1].Addr().Is4():
			errs.unless(false, "clusterCIDR", "%q: give one CIDR, or one of each family", c.ClusterCIDR)
		}
	default:
		errs.unless(false, "detectLocalMode", "%q is not %s, %s, %s, %s or empty", c.DetectLocalMode,
			LocalClusterCIDR, LocalNodeCIDR, LocalBridgeInterface, LocalInterfaceNamePrefix)
	}
}

// clusterCIDRs reads the field.
func (c *Config) clusterCIDRs() ([]netip.Prefix, error) {
	if c.ClusterCIDR == "" {
		return nil, nil
	}
	var cidrs []netip.Prefix
	for text := range strings.SplitSeq(c.ClusterCIDR, ",") {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("clusterCIDR: %q is no CIDR such as 10.244.0.0/16", text)
		}
		cidrs = append(cidrs, p.Masked())
	}
	return cidrs, nil
}

// faults are what is wrong with a configuration.
type faults []error

// unless adds what is wrong with a field unless it is right.
func (f *faults) unless(right bool, field, format string, args ...any) {
	if !right {
		*f = append(*f, fmt.Errorf("%s: "+format, append([]any{field}, args...)...))
	}
}

func (f *faults) within(field string, value *int32, least, most int32) {
	f.unless(value == nil || *value >= least && *value <= most, field, "%d is not within %d and %d", ptr.Deref(value, 0), least, most)
}

func (f *faults) notNegative(field string, d time.Duration) {
	f.unless(d >= 0, field, "%s is less than 0", d)
}

// hostPort checks an address to serve on; an empty one is that of a server which is switched off.
func (f *faults) hostPort(field, address string) {
	if address == "" {
		return
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		f.unless(false, field, "%q is not IP:port", address)
		return
	}
	_, err = parseAddr(host)
	f.unless(err == nil, field, "%q is no IP address", host)
	n, err := strconv.Atoi(port)
	f.unless(err == nil && n >= 1 && n <= 65535, field, "%q is no port", port)
}
