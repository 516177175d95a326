// agnhost's SCTP, which goes on where the kernel has no such sockets. ../go.mod has it stand in for
// the package of this name.
module github.com/ishidawataru/sctp

go 1.26.0

require (
	github.com/pion/sctp v1.11.0
	golang.org/x/net v0.57.0
	kernel.example/sctp v0.0.0
)
