// Package kubeproxy reads what kube-proxy is configured with, its file
// (kubeproxy.config.k8s.io/v1alpha1) and its flags, and says what of that Sluice
// does when it is started in place of kube-proxy. Names, defaults and checks are those of
// kube-proxy 1.37.
package kubeproxy

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The group, version and kind of the file.
const (
	Group      = "kubeproxy.config.k8s.io"
	APIVersion = Group + "/v1alpha1"
	Kind       = "KubeProxyConfiguration"
)

// Config is a KubeProxyConfiguration, field by field as in the file; the types are
// plain where the API's own would only bring packages along. Encoded as JSON it is
// what kube-proxy shows under /configz.
type Config struct {
	Kind       string `json:"kind,omitempty"`
	APIVersion string `json:"apiVersion,omitempty"`

	FeatureGates     map[string]bool  `json:"featureGates,omitempty"`
	ClientConnection ClientConnection `json:"clientConnection"`
	Logging          Logging          `json:"logging,omitzero"`

	HostnameOverride            string `json:"hostnameOverride"`
	BindAddress                 string `json:"bindAddress"`
	HealthzBindAddress          string `json:"healthzBindAddress"`
	MetricsBindAddress          string `json:"metricsBindAddress"`
	BindAddressHardFail         bool   `json:"bindAddressHardFail"`
	EnableProfiling             bool   `json:"enableProfiling"`
	ShowHiddenMetricsForVersion string `json:"showHiddenMetricsForVersion"`

	Mode      string    `json:"mode"`
	IPTables  IPTables  `json:"iptables"`
	IPVS      IPVS      `json:"ipvs"`
	NFTables  NFTables  `json:"nftables"`
	Winkernel Winkernel `json:"winkernel"`

	DetectLocalMode string      `json:"detectLocalMode"`
	DetectLocal     DetectLocal `json:"detectLocal"`
	ClusterCIDR     string      `json:"clusterCIDR"` // one, or two parted by a comma

	NodePortAddresses []string        `json:"nodePortAddresses"` // CIDRs, "primary", "localhost", "all"
	OOMScoreAdj       *int32          `json:"oomScoreAdj"`
	Conntrack         Conntrack       `json:"conntrack"`
	ConfigSyncPeriod  metav1.Duration `json:"configSyncPeriod"`

	PortRange           string `json:"portRange"`
	WindowsRunAsService bool   `json:"windowsRunAsService,omitempty"`
}

// ClientConnection says which API server to ask, and how.
type ClientConnection struct {
	Kubeconfig         string  `json:"kubeconfig"` // "": what a pod has
	AcceptContentTypes string  `json:"acceptContentTypes"`
	ContentType        string  `json:"contentType"`
	QPS                float32 `json:"qps"`
	Burst              int32   `json:"burst"`
}

// Logging is LoggingConfiguration of Kubernetes' components.
type Logging struct {
	Format         string         `json:"format,omitempty"` // "text" or "json"
	FlushFrequency any            `json:"flushFrequency"`   // nanoseconds, or text such as "5s"
	Verbosity      uint32         `json:"verbosity"`
	VModule        []VModule      `json:"vmodule,omitempty"`
	Options        LoggingOptions `json:"options,omitzero"`
}

// VModule is the verbosity of some of kube-proxy's source files.
type VModule struct {
	FilePattern string `json:"filePattern"`
	Verbosity   uint32 `json:"verbosity"`
}

// LoggingOptions are those of each format.
type LoggingOptions struct {
	Text LoggingOutput `json:"text,omitzero"`
	JSON LoggingOutput `json:"json,omitzero"`
}

// LoggingOutput says where lines go.
type LoggingOutput struct {
	SplitStream    bool `json:"splitStream,omitempty"`
	InfoBufferSize any  `json:"infoBufferSize,omitempty"` // a quantity: a number or text
}

// IPTables holds what the modes iptables and ipvs share.
type IPTables struct {
	MasqueradeBit      *int32          `json:"masqueradeBit"`
	MasqueradeAll      bool            `json:"masqueradeAll"`
	LocalhostNodePorts *bool           `json:"localhostNodePorts"`
	SyncPeriod         metav1.Duration `json:"syncPeriod"`
	MinSyncPeriod      metav1.Duration `json:"minSyncPeriod"`
}

// IPVS is of mode ipvs.
type IPVS struct {
	SyncPeriod    metav1.Duration `json:"syncPeriod"`
	MinSyncPeriod metav1.Duration `json:"minSyncPeriod"`
	Scheduler     string          `json:"scheduler"`
	ExcludeCIDRs  []string        `json:"excludeCIDRs"`
	StrictARP     bool            `json:"strictARP"`
	TCPTimeout    metav1.Duration `json:"tcpTimeout"`
	TCPFinTimeout metav1.Duration `json:"tcpFinTimeout"`
	UDPTimeout    metav1.Duration `json:"udpTimeout"`
}

// NFTables is of mode nftables.
type NFTables struct {
	MasqueradeBit *int32          `json:"masqueradeBit"`
	MasqueradeAll bool            `json:"masqueradeAll"`
	SyncPeriod    metav1.Duration `json:"syncPeriod"`
	MinSyncPeriod metav1.Duration `json:"minSyncPeriod"`
}

// Winkernel is of Windows.
type Winkernel struct {
	NetworkName           string `json:"networkName"`
	SourceVip             string `json:"sourceVip"`
	EnableDSR             bool   `json:"enableDSR"`
	RootHnsEndpointName   string `json:"rootHnsEndpointName"`
	ForwardHealthCheckVip bool   `json:"forwardHealthCheckVip"`
}

// DetectLocal holds what some DetectLocalModes need.
type DetectLocal struct {
	BridgeInterface     string `json:"bridgeInterface"`
	InterfaceNamePrefix string `json:"interfaceNamePrefix"`
}

// Conntrack are the kernel's parameters of connection tracking. Durations of 0 leave them as they
// are.
type Conntrack struct {
	MaxPerCore            *int32           `json:"maxPerCore"`
	Min                   *int32           `json:"min"`
	TCPEstablishedTimeout *metav1.Duration `json:"tcpEstablishedTimeout"`
	TCPCloseWaitTimeout   *metav1.Duration `json:"tcpCloseWaitTimeout"`
	TCPBeLiberal          bool             `json:"tcpBeLiberal"`
	UDPTimeout            metav1.Duration  `json:"udpTimeout"`
	UDPStreamTimeout      metav1.Duration  `json:"udpStreamTimeout"`
}

// The values of Mode.
const (
	ModeIPTables = "iptables"
	ModeIPVS     = "ipvs"
	ModeNFTables = "nftables"
)

// The values of DetectLocalMode.
const (
	LocalClusterCIDR         = "ClusterCIDR"
	LocalNodeCIDR            = "NodeCIDR"
	LocalBridgeInterface     = "BridgeInterface"
	LocalInterfaceNamePrefix = "InterfaceNamePrefix"
)

// The words that NodePortAddresses may hold beside CIDRs.
const (
	Primary   = "primary"   // the node's address of each family
	Localhost = "localhost" // 127.0.0.0/8 and ::1/128
	All       = "all"       // 0.0.0.0/0 and ::/0
)

// masqueradeAll is the field that counts in the mode.
func (c *Config) masqueradeAll() *bool {
	if c.Mode == ModeNFTables {
		return &c.NFTables.MasqueradeAll
	}
	return &c.IPTables.MasqueradeAll
}

// syncPeriods are the fields that count in the mode.
func (c *Config) syncPeriods() (period, least *metav1.Duration, section string) {
	switch c.Mode {
	case ModeIPVS:
		return &c.IPVS.SyncPeriod, &c.IPVS.MinSyncPeriod, "ipvs"
	case ModeNFTables:
		return &c.NFTables.SyncPeriod, &c.NFTables.MinSyncPeriod, "nftables"
	}
	return &c.IPTables.SyncPeriod, &c.IPTables.MinSyncPeriod, "iptables"
}
