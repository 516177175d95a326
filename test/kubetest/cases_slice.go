package kubetest

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// These are the labels of objects that a proxy ignores.
const (
	proxyName = "service.kubernetes.io/service-proxy-name"
	headless  = corev1.IsHeadlessService
)

// sliceCases are about slices that the cluster does not make itself, and labels that keep a proxy
// away.
func sliceCases() []*Case {
	eighty := portTo(tcp, 80, number(8090))
	eightyOne := portTo(tcp, 81, number(9090))
	eightyOneSame := portTo(tcp, 81, number(8090))
	return []*Case{
		{
			Name:  "slices-of-several-ports",
			Shows: "the ports of a service without a selector come from several slices",
			Tests: []string{
				"EndpointSlice / should support a Service with multiple ports specified in multiple EndpointSlices",
			},
			Steps: []Step{
				create(service("web", to(""), ports(eighty, eightyOne)), pod("a", 1, serving(tcp, 8090, 9090))),
				lead("first", "web", eighty, nil, endpoint{pod: "a"}),
				lead("second", "web", eightyOne, nil, endpoint{pod: "a"}),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a").on(8090)),
				ask("client1", tcp, clusterIP("web", 81), answeredBy("a").on(9090)),
				removeSlice("second"),
				ask("client1", tcp, clusterIP("web", 81), refused()),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a").on(8090)),
			},
		},
		{
			Name:  "slices-of-several-pods",
			Shows: "its pods come from several slices, too, for a port each and for one port together",
			Tests: []string{
				"EndpointSlice / should support a Service with multiple endpoint IPs specified in multiple EndpointSlices",
			},
			Steps: []Step{
				create(service("web", to(""), ports(eighty, eightyOneSame)), pod("a", 1, serving(tcp, 8090)), pod("b", 2, serving(tcp, 8090))),
				lead("first", "web", eighty, nil, endpoint{pod: "a"}),
				lead("second", "web", eightyOneSame, nil, endpoint{pod: "b"}),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				ask("client1", tcp, clusterIP("web", 81), answeredBy("b")),
				lead("third", "web", eighty, nil, endpoint{pod: "b"}),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				lead("third", "web", eighty, nil, endpoint{pod: "b"}, endpoint{pod: "a"}),
				removeSlice("first"),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				removeSlice("third"),
				ask("client1", tcp, clusterIP("web", 80), refused()),
			},
		},
		{
			Name:  "mirrored-endpoints",
			Shows: "Endpoints objects are mirrored into slices, through creation, change and removal",
			Tests: []string{
				"EndpointSliceMirroring / should mirror a custom Endpoints resource through create update and delete",
				"EndpointSliceMirroring / should mirror a custom Endpoint with multiple subsets and same IP address",
			},
			Steps: []Step{
				create(service("web", to("")), pod("a", 1, serving(tcp, 8090)), pod("b", 2, serving(tcp, 8090))),
				mirror("web", 8090, "a"),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a").on(8090)),
				mirror("web", 8090, "a", "b"),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				mirror("web", 8090, "b"),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("b")),
				mirror("web", 8090),
				ask("client1", tcp, clusterIP("web", 80), refused()),
			},
		},
		{
			Name:  "slices-of-services",
			Shows: "slices that the cluster makes for services of pods: by number, by name, and without pods",
			Tests: []string{
				"EndpointSlice / should create Endpoints and EndpointSlices for Pods matching a Service",
			},
			Steps: []Step{
				create(service("number", ports(portTo(tcp, 80, number(3000)))), service("name", ports(portTo(tcp, 80, named("http")))),
					service("nobody", to("nobody")), pod("a", 1, naming("http", 3000)), pod("b", 2, naming("http", 3000)), pod("c", 3, naming("http", 3001))),
				ask("client1", tcp, clusterIP("name", 80), answeredBy("a", "b", "c")),
				removePods("c"),
				ask("client1", tcp, clusterIP("number", 80), answeredBy("a", "b").on(3000)),
				ask("client1", tcp, clusterIP("name", 80), answeredBy("a", "b").on(3000)),
				ask("client1", tcp, clusterIP("nobody", 80), refused()),
			},
		},
		{
			Name:  "other-proxies-services",
			Shows: "a service with the label of another proxy is left alone, as long as it has the label",
			Tests: []string{
				"Services / should implement service.kubernetes.io/service-proxy-name",
			},
			Steps: []Step{
				create(service("theirs", marked(proxyName, "foo-bar")), service("ours"), pod("a", 1), pod("b", 2)),
				ask("client1", tcp, clusterIP("ours", 80), answeredBy("a", "b")),
				settled(),
				ask("client1", tcp, clusterIP("theirs", 80), unanswered()),
				update("ours", "gets the label", marked(proxyName, "foo-bar")),
				ask("client1", tcp, clusterIP("ours", 80), unanswered()),
				ask("node2", tcp, clusterIP("ours", 80), unanswered()),
				update("ours", "loses the label", unmarked),
				ask("client1", tcp, clusterIP("ours", 80), answeredBy("a", "b")),
				settled(),
				ask("client1", tcp, clusterIP("theirs", 80), unanswered()),
			},
		},
		{
			Name:  "headless-slices",
			Shows: "a slice with the label of headless services is ignored",
			Tests: []string{
				"Services / should implement service.kubernetes.io/headless",
			},
			Steps: []Step{
				create(service("web", to(""), ports(eighty)), pod("a", 1, serving(tcp, 8090))),
				lead("only", "web", eighty, nil, endpoint{pod: "a"}),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				lead("only", "web", eighty, map[string]string{headless: ""}, endpoint{pod: "a"}),
				ask("client1", tcp, clusterIP("web", 80), refused()),
				lead("only", "web", eighty, nil, endpoint{pod: "a"}),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
			},
		},
		{
			Name:  "headless-services",
			Shows: "a headless service has no address; its pods answer at their own",
			Tests: []string{
				"Services / should serve a basic endpoint from pods",
			},
			Steps: []Step{
				create(service("web", headlessly), service("balanced"), pod("a", 1)),
				ask("client2", tcp, clusterIP("balanced", 80), answeredBy("a")),
				ask("client2", tcp, podItself("a", 80), answeredBy("a").seeing(own)),
			},
		},
		{
			Name:  "endpoint-conditions",
			Shows: "in slices written by hand, endpoints that are not ready are ignored, and those without conditions count as ready",
			Tests: []string{
				"EndpointSlice / should support creating EndpointSlice API operations",
			},
			Steps: []Step{
				create(service("web", to(""), ports(eighty)), pod("a", 1, serving(tcp, 8090)), pod("b", 2, serving(tcp, 8090))),
				lead("only", "web", eighty, nil, endpoint{pod: "a", tweak: unready}, endpoint{pod: "b"}),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("b")),
				lead("only", "web", eighty, nil, endpoint{pod: "a"}, endpoint{pod: "b", tweak: unready}),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				lead("only", "web", eighty, nil, endpoint{pod: "a", tweak: unknown}, endpoint{pod: "b", tweak: unknown}),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")),
			},
		},
	}
}

func unmarked(s *corev1.Service) { s.Labels = nil }

func headlessly(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }

func unready(e *discoveryv1.Endpoint) {
	e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false), Terminating: new(false)}
}

func unknown(e *discoveryv1.Endpoint) { e.Conditions = discoveryv1.EndpointConditions{} }
