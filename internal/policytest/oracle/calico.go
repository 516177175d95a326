package oracle

import corev1 "k8s.io/api/core/v1"

// Calico are Calico's objects.
type Calico struct{}

// middle are the tiers between Admin and Baseline: NetworkPolicy's.
func (o *Objects) middle(subject *corev1.Pod, c Connection, d direction) (final, allow bool) {
	return o.networkPolicies(subject, c, d)
}
