package lab

import (
	"fmt"
	"os/exec"
	"strings"

	"sluice.dev/sluice/test/lab/plan"
)

// startBIRD has the router speak BGP with all nodes, as their route reflector.
func (l *Lab) startBIRD() error {
	path, err := exec.LookPath("bird")
	if err != nil {
		return fmt.Errorf("find the router's BGP speaker: %w: install BIRD 2 (apt-get install bird2)", err)
	}
	conf := l.path("bird.conf")
	if err := l.write(conf, []byte(birdConfig(plan.BGP.Subnets()))); err != nil {
		return err
	}
	return l.start(plan.Router, "bird", []string{path, "-f", "-c", conf, "-s", l.path("bird.sock")})
}

// birdConfig is the router's configuration. It waits for the nodes to open their sessions.
func birdConfig(subnets int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "router id %s;\nprotocol device {}\nprotocol direct { ipv4; ipv6; }\n", plan.RouterIPs(0)[0])
	for _, family := range []string{"ipv4", "ipv6"} {
		fmt.Fprintf(&b, "protocol kernel { %s { export where source = RTS_BGP; }; }\n", family)
	}
	for i := range subnets {
		for j, subnet := range plan.Subnet(i) {
			family := []string{"ipv4", "ipv6"}[j]
			fmt.Fprintf(&b, "protocol bgp { neighbor range %s as %d; local %s as %d; multihop; dynamic name \"node%d%s\"; rr client; %s { import all; export where source = RTS_BGP; }; }\n",
				subnet, plan.AS, plan.RouterIPs(0)[j], plan.AS, i, family, family)
		}
	}
	return b.String()
}
