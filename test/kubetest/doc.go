// Package kubetest checks what Kubernetes' own end-to-end tests of services and EndpointSlices
// require of a service proxy, as a table of cases with real packets. Objects go through a real API
// server, its scheduler and controllers, and pods are network namespaces. A case asserts which pod
// answers whom, which client address it sees, and how the other requests are refused.
//
// The same table runs with kube-proxy instead of Sluice. Where the two differ, the table says so,
// with the reason. A difference that no longer exists is a failure, too.
package kubetest
