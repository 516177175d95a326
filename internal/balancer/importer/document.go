// Package importer turns the configuration of other balancers into ours: the output of
// `ipvsadm -Sn`, a keepalived.conf, a file of nftlb. It reads text, and the files that a
// keepalived.conf includes.
//
// Whatever cannot be carried over as it was is in a Note, with its line.
package importer

// Document is a balancer's configuration: nftlb's JSON form (docs/nftlb.md) with what it lacks.
// As there, every value is a string, and "" is the default.
type Document struct {
	Farms     []*Farm    `json:"farms,omitempty"`
	Addresses []*Address `json:"addresses,omitempty"`
	Policies  []*Policy  `json:"policies,omitempty"`
}

// Farm is a virtual service. Its fields are in the order in which nftlb prints them; AllDown and
// HealthCheck are ours. A VirtualAddr that is empty is every address, and VirtualPorts all ports
// and protocols; nil is none.
type Farm struct {
	Name            string  `json:"name"`
	Family          string  `json:"family,omitempty"`
	VirtualAddr     *string `json:"virtual-addr,omitempty"`
	VirtualPorts    *string `json:"virtual-ports,omitempty"`
	SourceAddr      string  `json:"source-addr,omitempty"`
	Mode            string  `json:"mode,omitempty"`
	Protocol        string  `json:"protocol,omitempty"`
	Scheduler       string  `json:"scheduler,omitempty"`
	SchedParam      string  `json:"sched-param,omitempty"`
	Persistence     string  `json:"persistence,omitempty"`
	PersistTTL      string  `json:"persist-ttl,omitempty"`
	Helper          string  `json:"helper,omitempty"`
	Log             string  `json:"log,omitempty"`
	LogPrefix       string  `json:"log-prefix,omitempty"`
	LogRate         string  `json:"log-rtlimit,omitempty"`
	Mark            string  `json:"mark,omitempty"`
	State           string  `json:"state,omitempty"`
	LimitsTTL       string  `json:"limits-ttl,omitempty"`
	NewRate         string  `json:"new-rtlimit,omitempty"`
	NewBurst        string  `json:"new-rtlimit-burst,omitempty"`
	NewLogPrefix    string  `json:"new-rtlimit-log-prefix,omitempty"`
	RSTRate         string  `json:"rst-rtlimit,omitempty"`
	RSTBurst        string  `json:"rst-rtlimit-burst,omitempty"`
	RSTLogPrefix    string  `json:"rst-rtlimit-log-prefix,omitempty"`
	EstLimit        string  `json:"est-connlimit,omitempty"`
	EstLogPrefix    string  `json:"est-connlimit-log-prefix,omitempty"`
	TCPStrict       string  `json:"tcp-strict,omitempty"`
	StrictLogPrefix string  `json:"tcp-strict-log-prefix,omitempty"`
	Queue           string  `json:"queue,omitempty"`
	Verdict         string  `json:"verdict,omitempty"`
	FlowOffload     string  `json:"flow-offload,omitempty"`
	IntraConnect    string  `json:"intra-connect,omitempty"`
	InDevice        string  `json:"iface,omitempty"`
	OutDevice       string  `json:"oface,omitempty"`
	EtherAddr       string  `json:"ether-addr,omitempty"`
	InEtherAddr     string  `json:"iether-addr,omitempty"`
	OutEtherAddr    string  `json:"oether-addr,omitempty"`
	// AllDown is "keep" (serve on with all backends) or "refuse", once every backend fails.
	AllDown     string       `json:"all-down,omitempty"`
	HealthCheck *HealthCheck `json:"health-check,omitempty"`
	Addresses   []*Address   `json:"addresses,omitempty"`
	Backends    []*Backend   `json:"backends,omitempty"`
	Policies    []*Policy    `json:"policies,omitempty"`
	Sessions    []*Session   `json:"sessions,omitempty"`
}

// Address is a place where clients find a farm. In a farm, a name alone stands for an address of
// the document.
type Address struct {
	Name        string    `json:"name"`
	Family      string    `json:"family,omitempty"`
	IP          string    `json:"ip-addr,omitempty"`
	Ports       *string   `json:"ports,omitempty"`
	Protocol    string    `json:"protocol,omitempty"`
	Verdict     string    `json:"verdict,omitempty"`
	LogPrefix   string    `json:"log-prefix,omitempty"`
	InDevice    string    `json:"iface,omitempty"`
	InEtherAddr string    `json:"iether-addr,omitempty"`
	Policies    []*Policy `json:"policies,omitempty"`
}

// Backend is a server. State is "up" (the default), "down", "off", or, of our own, "draining".
type Backend struct {
	Name         string `json:"name"`
	IP           string `json:"ip-addr,omitempty"`
	EtherAddr    string `json:"ether-addr,omitempty"`
	Port         string `json:"port,omitempty"`
	SourceAddr   string `json:"source-addr,omitempty"`
	Weight       string `json:"weight,omitempty"`
	Priority     string `json:"priority,omitempty"`
	Mark         string `json:"mark,omitempty"`
	EstLimit     string `json:"est-connlimit,omitempty"`
	EstLogPrefix string `json:"est-connlimit-log-prefix,omitempty"`
	State        string `json:"state,omitempty"`
	Unchecked    string `json:"unchecked,omitempty"` // "on": the farm's check is not made of it
}

// HealthCheck says how the backends of a farm are checked. Times are in seconds.
type HealthCheck struct {
	Type     string   `json:"type"` // tcp, http, https, icmp, grpc, udp, command
	Interval string   `json:"interval,omitempty"`
	Timeout  string   `json:"timeout,omitempty"`
	Rise     string   `json:"rise,omitempty"`
	Fall     string   `json:"fall,omitempty"`
	Port     string   `json:"port,omitempty"`
	Host     string   `json:"host,omitempty"`
	Path     string   `json:"path,omitempty"`
	Method   string   `json:"method,omitempty"`
	Status   string   `json:"status,omitempty"` // "200-399"
	Body     string   `json:"body,omitempty"`
	Service  string   `json:"service,omitempty"`
	Send     string   `json:"send,omitempty"`
	Expect   string   `json:"expect,omitempty"`
	Command  []string `json:"command,omitempty"`
	Insecure string   `json:"insecure,omitempty"`
}

// Policy is a list of addresses. In a farm or an address, its name alone stands there.
type Policy struct {
	Name      string    `json:"name"`
	Family    string    `json:"family,omitempty"`
	Type      string    `json:"type,omitempty"`
	LogPrefix string    `json:"log-prefix,omitempty"`
	Elements  []Element `json:"elements,omitempty"`
}

// Element is a member of a policy: an address, a prefix or a range.
type Element struct {
	Data string `json:"data"`
}

// Session is a client whose backend is given.
type Session struct {
	Client  string `json:"client"`
	Backend string `json:"backend"`
}
