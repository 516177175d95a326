// Package e2e has Kubernetes' own end-to-end suite at the version of the rest. It is a module of
// its own, as the suite requires much that nothing else does.
package e2e

import _ "k8s.io/kubernetes/test/e2e" // the suite: `go test -c k8s.io/kubernetes/test/e2e`
