// agnhost's SCTP library, which also works on kernels without sockets of SCTP. ../go.mod has it
// stand in for the package of this name. (Later versions of pion/sctp want other versions of what
// Kubernetes is made of.)
module github.com/ishidawataru/sctp

go 1.26.0

require (
	github.com/pion/logging v0.2.4
	github.com/pion/sctp v1.11.0
	golang.org/x/net v0.57.0
	kernel.example/sctp v0.0.0
)

require (
	github.com/pion/randutil v0.1.0 // indirect
	github.com/pion/transport/v4 v4.0.2 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

// The package itself, by a name of its own.
replace kernel.example/sctp => github.com/ishidawataru/sctp v0.0.0-20250521072954-ae8eb7fa7995
