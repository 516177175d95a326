package kubetest

import (
	"fmt"
	"strings"

	"sluice.dev/sluice/internal/driver/ipvs"
	"sluice.dev/sluice/internal/kernel/probe"
)

// mode is a way in which Sluice carries out services, beside the one that the table's page is of.
type mode struct {
	name  string
	flags []string             // of the agent
	needs []*probe.Requirement // what not every kernel has
	lacks map[string]string    // cases that it cannot pass, and why
}

// modes are in an order in which an agent may change from one to the next: from ipvs to userspace
// it may not.
var modes = []mode{
	{name: "ipvs", flags: []string{"--mode=ipvs"}, needs: ipvs.Requirements, lacks: map[string]string{
		"affinity-across-addresses":    "a client's first connection to each address gets the same pod: all virtual servers of the scheduler rr begin with the same one",
		"connections-outlive-services": "a connection ends with its virtual server, which goes with its service",
		"large-requests-of-nodes":      "over IPv6, IPVS refuses datagrams of the node itself that are larger than a packet",
	}},
	{name: "iptables-legacy", flags: []string{"--mode=iptables", "--iptables-variant=legacy"}},
	{name: "iptables-nft", flags: []string{"--mode=iptables", "--iptables-variant=nft"}},
	{name: "userspace", flags: []string{"--mode=userspace", "--userspace-client-address=transparent"}, lacks: map[string]string{
		"sctp":                         "the proxy has no SCTP",
		"connections-outlive-services": "a connection through the proxy is cut when its service goes",
		"proxy-restarts":               "nothing is served while the proxy does not run",
	}},
}

const inOtherModes = `
## In other modes

The table above is of the mode nftables. These commands run the same cases in [the others](modes.md), that of IPVS in
guests with Linux 6.1 and 6.12 ([what was run](support.md#kernels)):

` + "```sh by test/kubetest TestModes" + `
go test ./test/kubetest -count=1 -run TestModes -modes
make test-ipvs
` + "```" + `

All pass but those that a mode cannot pass, which are left out:

| mode | case | why |
| --- | --- | --- |
`

func writeModes(b *strings.Builder) {
	b.WriteString(inOtherModes)
	for _, m := range modes {
		for _, name := range sortedKeys(m.lacks) {
			fmt.Fprintf(b, "| %s | %s | %s |\n", m.name, name, m.lacks[name])
		}
	}
}
