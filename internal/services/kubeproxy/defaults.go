package kubeproxy

import (
	"net"
	"net/netip"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The ports of kube-proxy.
const (
	HealthzPort = 10256
	MetricsPort = 10249
)

// Default returns the configuration that kube-proxy has without a file and without flags.
func Default() *Config {
	c := &Config{Kind: Kind, APIVersion: APIVersion}
	c.fill()
	return c
}

// fill gives what is not set kube-proxy's default, except for what depends on the mode.
func (c *Config) fill() {
	fill(&c.BindAddress, "0.0.0.0")
	healthz, metrics := "0.0.0.0", "127.0.0.1"
	if a, err := parseAddr(c.BindAddress); err != nil || !a.Is4() {
		healthz, metrics = "::", "::1"
	}
	fill(&c.HealthzBindAddress, healthz)
	fill(&c.MetricsBindAddress, metrics)
	c.HealthzBindAddress = withPort(c.HealthzBindAddress, HealthzPort)
	c.MetricsBindAddress = withPort(c.MetricsBindAddress, MetricsPort)

	fillPointer(&c.OOMScoreAdj, -999)
	fillPointer(&c.IPTables.LocalhostNodePorts, true)
	fillPointer(&c.IPTables.MasqueradeBit, 14)
	fillPointer(&c.NFTables.MasqueradeBit, 14)
	fill(&c.IPTables.SyncPeriod.Duration, 30*time.Second)
	fill(&c.IPTables.MinSyncPeriod.Duration, time.Second)
	fill(&c.IPVS.SyncPeriod.Duration, 30*time.Second)
	fill(&c.NFTables.SyncPeriod.Duration, 30*time.Second)
	fill(&c.NFTables.MinSyncPeriod.Duration, time.Second)
	fill(&c.ConfigSyncPeriod.Duration, 15*time.Minute)

	fillPointer(&c.Conntrack.MaxPerCore, 32<<10)
	fillPointer(&c.Conntrack.Min, 128<<10)
	fillPointer(&c.Conntrack.TCPEstablishedTimeout, metav1.Duration{Duration: 24 * time.Hour})
	fillPointer(&c.Conntrack.TCPCloseWaitTimeout, metav1.Duration{Duration: time.Hour})

	fill(&c.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	fill(&c.ClientConnection.QPS, 5)
	fill(&c.ClientConnection.Burst, 10)
	fill(&c.Logging.Format, "text")
	switch c.Logging.FlushFrequency {
	case nil, int64(0), "0", "0s":
		c.Logging.FlushFrequency = "5s"
	}
	for _, size := range []*any{&c.Logging.Options.Text.InfoBufferSize, &c.Logging.Options.JSON.InfoBufferSize} {
		if *size == nil {
			*size = "0"
		}
	}
}

// fillForMode does the rest, once the mode is known. As in what kube-proxy shows of itself, nothing
// is left of what counts in other modes alone.
func (c *Config) fillForMode() {
	fill(&c.Mode, ModeIPTables)
	period, least, _ := c.syncPeriods()
	masqueradeAll, syncPeriod, minSyncPeriod := *c.masqueradeAll(), *period, *least
	c.IPTables.MasqueradeAll, c.NFTables.MasqueradeAll = false, false
	for _, d := range []*metav1.Duration{&c.IPTables.SyncPeriod, &c.IPTables.MinSyncPeriod, &c.IPVS.SyncPeriod, &c.IPVS.MinSyncPeriod,
		&c.NFTables.SyncPeriod, &c.NFTables.MinSyncPeriod} {
		*d = metav1.Duration{}
	}
	*c.masqueradeAll(), *period, *least = masqueradeAll, syncPeriod, minSyncPeriod
	fill(&c.DetectLocalMode, LocalClusterCIDR)
	if c.Mode == ModeNFTables && len(c.NodePortAddresses) == 0 {
		c.NodePortAddresses = []string{Primary}
	}
}

func fill[T comparable](field *T, value T) {
	if *field == *new(T) {
		*field = value
	}
}

func fillPointer[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// withPort adds the port to an address that has none. What is no address stays, for check to find.
func withPort(address string, port int) string {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	if _, err := parseAddr(address); err != nil {
		return address
	}
	return net.JoinHostPort(address, strconv.Itoa(port))
}

// parseAddr reads an address; an IPv4-mapped IPv6 address becomes the IPv4 address.
func parseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	return a.Unmap(), err
}
