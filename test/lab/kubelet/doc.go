// Package kubelet replaces the kubelet on a lab's node: it registers the node with a real API
// server and runs the pods that are bound to it. A pod is a network namespace with its own
// addresses and interface, made by package attach. Its containers are servers (package echo) that
// answer on the containers' ports and name their pod. Images are neither pulled nor run.
//
// It keeps the Kubernetes API's promises about a pod's life: addresses, conditions, probes with
// their thresholds, readiness gates, sidecars, restarts, Jobs that complete, preStop hooks, the
// grace period, and pods that outlive a restart of this process or an outage of the API server.
// Some annotations control a pod, for people and tests; see ReadyAnnotation and those beside it.
//
// kubectl exec and attach run this machine's programs in the pod's network.
//
// It does not support kubectl logs and port-forward, volumes, resources, host ports of pods with
// their own network, or commands other than a few built-in ones (see command).
package kubelet
