// Package kubelet is what a lab's node has in place of a kubelet: it registers the node with a real
// API server and runs the pods that are bound to it. A pod is a network namespace with addresses
// and an interface of its own, as package attach makes them, and its containers are servers
// (package echo) that answer on the containers' ports and say who they are. Images are neither
// pulled nor run.
//
// What the Kubernetes API promises of a pod's life holds: addresses, conditions, probes with their
// thresholds, readiness gates, sidecars, restarts, Jobs that complete, preStop hooks, the grace
// period, and pods that outlive a restart of this process or an API server that is away. Some
// annotations of a pod steer it, for people and tests; see ReadyAnnotation and those beside it.
//
// What it does not do: kubectl logs, exec, attach and port-forward (there is no kubelet HTTP API;
// `sluice lab exec POD` is the way in), volumes, resources, host ports of pods that have a network
// of their own, and commands other than a few built-in ones (see command).
package kubelet
