package preflight

import (
	"sluice.dev/sluice/internal/foreign"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/kernel/sysctl"
)

// Facts is what Check evaluates. An Err field says why the fields beside it could
// not be read; they are empty then.
type Facts struct {
	Kernel    string // release, as uname says it
	KernelErr error

	NetAdmin    bool // CAP_NET_ADMIN is effective
	NetAdminErr error

	Features    []Feature // requirements of services
	Optional    []Feature // what the kernel need not have
	FeaturesErr error     // why they could not be asked

	Mode       string // in which services are carried out
	ModeReason string // why the node chose it; empty: it was asked for

	PolicyAsked    bool      // the agent is to carry out policy, too
	PolicyFeatures []Feature // requirements of policy; none: policy is not asked for
	PolicyErr      error
	Bridges        []string // that have veths; only read where policy is asked for
	BridgeCalls    bool     // what a bridge forwards meets the rules of IP, too

	FabricAsked    bool      // the agent is to connect nodes, too
	FabricFeatures []Feature // requirements of the mode
	FabricErr      error
	FabricVXLAN    bool  // the mode has VXLAN tunnels
	NICs           []NIC // that packets to other nodes may leave by; only read where the fabric is asked for
	NICErr         error

	Uplinks   []NIC // at which packets arrive that come by default routes
	UplinkErr error

	DriverAsked bool
	DriverErr   error  // why the driver cannot work here
	Driver      string // its name
	DriverLacks string // what it cannot do of all that services and policies may ask for; empty: nothing

	Families []Family // those in use

	Forwarding []string // interfaces, "all" included, whose IPv4 forwarding is off
	StrictPath []string // interfaces whose effective rp_filter is 1
	SysctlErr  error

	Conntrack Conntrack

	Neighbours []Neighbours // by family; none: they cannot be read here
	Nodes      int          // that are known; 0: nobody has said

	Chains    []foreign.Chain // of other programs
	OwnTable  bool            // there is a table inet sluice
	ChainsErr error

	Legacy    foreign.Legacy
	IPVS      int      // virtual services
	Processes []string // programs known to do part of our work that run here
	Devices   []string // interfaces
	Refused   []string // addresses and ports of services that the agent does not serve, with the reason
	RefuseErr error
	Taken     []string // addresses that the agent serves on and others have
	NoLivez   bool     // the program at the health address serves no /livez
	Memory    Memory
	Socket    string
	Alive     bool              // someone answers on Socket
	Changed   []sysctl.Override // noted in the record beside Socket, and still so
	Undone    []sysctl.Override // noted there, and no longer so: Was is what we set
	RecordErr error
}

// Feature is a requirement on the kernel, and its answer.
type Feature struct {
	*probe.Requirement
	Err error // nil: it can
}

// Family is an address family in use on the node.
type Family struct {
	Name     string // "IPv4" or "IPv6"
	Assumed  bool   // nobody said that the cluster has it, but the node does
	Target   string // the address whose route was asked for
	Route    string // where packets to Target go: "via 10.0.0.1 dev eth0"
	RouteErr error  // there is no route

	Forward   string // the parameter of forwarding
	Forwards  bool   // it is on
	AdviceErr error  // why the agent would leave it off, and what to do
}

// Conntrack is the connection table's state.
type Conntrack struct {
	Loaded             bool // the kernel has a table; the first rules load it otherwise
	Count, Max         int
	Liberal            bool // nf_conntrack_tcp_be_liberal
	CountErr, ParamErr error
}
