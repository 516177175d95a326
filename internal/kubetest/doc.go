// Package kubetest holds what Kubernetes' own end-to-end tests of services and EndpointSlices ask
// of a service proxy, as a table of cases with real packets: objects go through a real API server,
// its scheduler and controllers, pods are network namespaces, and what is asserted is which pod
// answers whom, as whom it sees the client, and how the others are turned away.
//
// The same table runs with kube-proxy in Sluice's place. Where the two differ, the table says so,
// with the reason, and a difference that is no longer there fails too.
package kubetest
