package kubetest

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Suite maps the descriptions of Kubernetes' end-to-end tests about services to their files in
// test/e2e/network. A title is such a description, " / ", and the name of the test.
var Suite = map[string]string{
	"Services":                      "service.go",
	"Service CIDRs":                 "service_cidrs.go",
	"ServiceCIDR and IPAddress API": "service_cidrs.go",
	"Service endpoints latency":     "service_latency.go",
	"EndpointsController":           "endpoints.go",
	"Endpoints":                     "endpoints.go",
	"EndpointSlice":                 "endpointslice.go",
	"EndpointSliceMirroring":        "endpointslicemirroring.go",
	"Conntrack":                     "conntrack.go",
	"NoSNAT":                        "no_snat.go",
	"Traffic Distribution":          "traffic_distribution.go",
	"Topology Hints":                "topology_hints.go",
	"Dual stack":                    "dual_stack.go",
	"Networking":                    "networking.go",
	"LoadBalancers":                 "loadbalancer.go",
	"LoadBalancers ExternalTrafficPolicy: Local": "loadbalancer.go",
	"KubeProxy":                  "kube_proxy.go",
	"LocalhostNodePorts":         "localhost_nodeports.go",
	"Connectivity Pod Lifecycle": "pod_lifecycle.go",
	"HostPort":                   "hostport.go",
}

// Omission says why some tests have no case.
type Omission struct {
	Why   string
	Tests []string
}

// Omissions lists the tests of the suite without a case.
func Omissions() []Omission {
	return []Omission{
		{
			"They test only the API server, its controllers or the cloud; no packet would show what a service proxy does.",
			[]string{
				"Services / should prevent NodePort collisions",
				"Services / should check NodePort out-of-range",
				"Services / should find a service from listing all namespaces",
				"Services / should complete a service status lifecycle",
				"ServiceCIDR and IPAddress API / should support ServiceCIDR API operations",
				"ServiceCIDR and IPAddress API / should support IPAddress API operations",
				"Endpoints / should test the lifecycle of an Endpoint",
				"EndpointsController / should create and delete Endpoints for a Service with a selector that matches no pods",
				"EndpointsController / should create Endpoints for Pods matching a Service",
				"LoadBalancers / should handle load balancer cleanup finalizer for service",
				"Networking / should provide unchanging, static URL paths for kubernetes api services",
			},
		},
		{
			"They are about pods' networks, names and the route to the Internet, which a service proxy does not provide.",
			[]string{
				"Dual stack / should have at least one dual-stack node",
				"Dual stack / should create pod, add ipv6 and ipv4 ip to pod ips",
				"Dual stack / should create pod, add ipv6 and ipv4 ip to host ips",
				"Networking / should provide Internet connection for containers",
				"Networking / should provider Internet connection for containers using DNS",
				"Networking / should allow creating a Pod with an SCTP HostPort [LinuxOnly]",
				"HostPort / validates that there is no conflict between pods with same hostPort but different hostIP and protocol [LinuxOnly]",
			},
		},
		{
			"They are about kube-proxy's own addresses, metrics and parameters of connection tracking. Our own tests of `sluice run --config` cover the like.",
			[]string{
				"Networking / should check kube-proxy urls",
				"KubeProxy / should set TCP CLOSE_WAIT timeout [Privileged]",
				"KubeProxy / should update metric for tracking accepted packets destined for localhost nodeports",
			},
		},
		{
			"Node ports on 127.0.0.1 exist only in kube-proxy's iptables mode, and behind a feature gate in its nftables mode (see the case node-port-addresses).",
			[]string{
				"LocalhostNodePorts / should honor sessionAffinity=ClientIP for localhost NodePort",
				"LocalhostNodePorts / should let a node pull an image from a registry exposed via localhost NodePort",
			},
		},
		{
			"It is a measurement, not a behaviour: the bench measures how long changes take.",
			[]string{
				"Service endpoints latency / should not be very high",
			},
		},
	}
}

// Results are the outcomes of the cases, by data plane.
type Results map[Dataplane][]Result

// cell is the table's entry for a case in a data plane.
func (rs Results) cell(c *Case, d Dataplane) string {
	i := slices.IndexFunc(rs[d], func(r Result) bool { return r.Case.Name == c.Name })
	switch {
	case i < 0:
		return "not run"
	case rs[d][i].Err != nil:
		return "**fails**"
	case len(c.Differences(d)) > 0:
		return "differs"
	}
	return "yes"
}

// Write writes the results as a page in Markdown.
func (rs Results) Write(w io.Writer, cases []*Case) error {
	b := &strings.Builder{}
	titles := map[string]bool{}
	for _, c := range cases {
		for _, t := range c.Tests {
			titles[t] = true
		}
	}
	fmt.Fprintf(b, intro, len(titles), len(cases))
	rs.writeTable(b, cases)
	writeDifferences(b, cases)
	writeModes(b)
	writeTests(b, cases)
	writeOmissions(b)
	_, err := io.WriteString(w, b.String())
	return err
}

const intro = `# Conformance

What Kubernetes' own end-to-end tests of services require of a service proxy, tested with packets on a cluster with a
real control plane: %d of these tests, in %d cases, some of which go beyond them.
A run of the tests writes this page:

` + "```sh by test/kubetest TestConformance" + `
KUBETEST_DATAPLANES=all go test ./test/kubetest -count=1 -update
` + "```" + `

The objects of a case go through a real kube-apiserver, kube-scheduler and kube-controller-manager. Pods are network
namespaces with a server in them. There are four nodes in three zones. Requests come from pods, from nodes and from
outside, and go to the IPv4 and the IPv6 addresses of each service. A case checks which pod answers, which client address
it sees, and whether an unanswered client gets a reset or a time-out. The cases are in
` + "`test/kubetest`" + `, one line for each question.

The same cases run with the real kube-proxy instead of Sluice, which shows that the cases are right. Where kube-proxy
behaves differently, the case expects exactly that: the table says *differs*, and the reason is below. If the difference
disappeared, the case would fail.

`

func (rs Results) writeTable(b *strings.Builder, cases []*Case) {
	fmt.Fprintf(b, "| case | shows that |")
	for _, d := range Dataplanes() {
		fmt.Fprintf(b, " %s |", d)
	}
	fmt.Fprintf(b, "\n| --- | --- |%s\n", strings.Repeat(" --- |", len(Dataplanes())))
	for _, c := range cases {
		fmt.Fprintf(b, "| %s | %s |", c.Name, c.Shows)
		for _, d := range Dataplanes() {
			fmt.Fprintf(b, " %s |", rs.cell(c, d))
		}
		fmt.Fprintln(b)
	}
}

func writeDifferences(b *strings.Builder, cases []*Case) {
	fmt.Fprintf(b, "\n## Differences\n\nNumbers of decisions are those of [decisions](decisions).\n")
	var reasons []string
	where := map[string][]string{}
	for _, c := range cases {
		for _, s := range c.Steps {
			q, ok := s.(Question)
			if !ok {
				continue
			}
			for _, x := range q.Differs {
				line := fmt.Sprintf("%s: %s. Expected: %s; of %s: %s.", c.Name, q, q.Want, listed(x.In), x.Want)
				if where[x.Why] == nil {
					reasons = append(reasons, x.Why)
				}
				if !slices.Contains(where[x.Why], line) {
					where[x.Why] = append(where[x.Why], line)
				}
			}
		}
	}
	for _, why := range reasons {
		fmt.Fprintf(b, "\n%s.\n\n", why)
		for _, line := range where[why] {
			fmt.Fprintf(b, "- %s\n", line)
		}
	}
	fmt.Fprintf(b, "\nWhile pods are replaced under load, no request to Sluice may fail; with kube-proxy, one of %d may, as in the end-to-end tests.\nA case that fails with kube-proxy gets a second attempt; with Sluice it does not.\n", tolerated)
}

func listed(ds []Dataplane) string {
	var names []string
	for _, d := range ds {
		names = append(names, string(d))
	}
	return strings.Join(names, " and ")
}

func writeTests(b *strings.Builder, cases []*Case) {
	fmt.Fprintf(b, "\n## The tests that the cases cover\n\nOf `test/e2e/network` in Kubernetes 1.37.\n\n| test | case |\n| --- | --- |\n")
	by := map[string][]string{}
	for _, c := range cases {
		for _, t := range c.Tests {
			by[t] = append(by[t], c.Name)
		}
	}
	for _, t := range sortedKeys(by) {
		fmt.Fprintf(b, "| %s | %s |\n", t, strings.Join(by[t], ", "))
	}
}

func writeOmissions(b *strings.Builder) {
	fmt.Fprintf(b, "\n## Tests without a case\n")
	for _, o := range Omissions() {
		fmt.Fprintf(b, "\n%s\n\n", o.Why)
		for _, t := range o.Tests {
			fmt.Fprintf(b, "- %s\n", t)
		}
	}
}

func sortedKeys[V any](m map[string]V) []string {
	var list []string
	for k := range m {
		list = append(list, k)
	}
	slices.Sort(list)
	return list
}
