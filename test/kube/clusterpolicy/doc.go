// Package clusterpolicy has the conformance suite of ClusterNetworkPolicy, of the release whose API
// the project reads. It is a module of its own, as the suite requires much that nothing else does.
package clusterpolicy

import _ "sigs.k8s.io/network-policy-api/conformance" // `go test -c sigs.k8s.io/network-policy-api/conformance`
