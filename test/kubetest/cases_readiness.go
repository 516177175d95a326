package kubetest

import corev1 "k8s.io/api/core/v1"

// publishing sets whether a service publishes addresses that are not ready.
func publishing(notReady bool) serviceOption {
	return func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = notReady }
}

// readinessCases are about pods that exist and are not ready.
func readinessCases() []*Case {
	return []*Case{
		{
			Name:  "unready-pods",
			Shows: "pods that are not ready get requests only if the service publishes them",
			Tests: []string{
				"Services / should create endpoints for unready pods",
			},
			Steps: []Step{
				create(service("web", publishingNotReady), pod("a", 1, gated)),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				update("web", "does not publish what is not ready", publishing(false)),
				ask("client1", tcp, clusterIP("web", 80), refused()),
				update("web", "publishes what is not ready", publishing(true)),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				update("web", "does not publish what is not ready", publishing(false)),
				ask("client1", tcp, clusterIP("web", 80), refused()),
				ready("a", true),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
				create(pod("b", 2)),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a", "b")),
				ready("a", false),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("b")),
			},
		},
		{
			Name:  "evicted-pods",
			Shows: "an evicted pod is not an endpoint, even of a service that publishes addresses that are not ready",
			Tests: []string{
				"Services / should be rejected for evicted pods (no endpoints exist)",
			},
			Steps: []Step{
				create(service("web", publishingNotReady)),
				fail("evicted"),
				settled(),
				ask("client1", tcp, clusterIP("web", 80), refused()),
				create(pod("a", 1)),
				ask("client1", tcp, clusterIP("web", 80), answeredBy("a")),
			},
		},
	}
}
