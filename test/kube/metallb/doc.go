// Package metallb has MetalLB's end-to-end tests, of the last release whose tests are part of its
// module: those of later ones are a module of their own without a version. It is a module here of
// its own, as the tests require the Kubernetes of their time.
package metallb

import _ "go.universe.tf/metallb/e2etest" // `go test -c go.universe.tf/metallb/e2etest`
