// Package health checks whether a balancer's backends are alive.
//
// A check goes from this machine straight to the backend's own address, never through the farm
// that the backend serves. TCP, UDP, HTTP and ICMP checks are non-blocking sockets of one loop, so
// that they cost little however many there are. HTTPS, gRPC and ARP checks and commands run in
// goroutines, of which a bounded number exists at a time; where they wait for their turn, checks
// become less frequent, and no backend is taken for dead.
//
// A plain TCP check ends with a reset before the third packet of the handshake: the backend's
// kernel has answered, and its program never hears of the connection, logs nothing, and needs to
// accept nothing. Nor does this machine keep a TIME-WAIT entry. An HTTP check ends with a reset
// once the backend has closed its side, and only then.
package health

import (
	"net/netip"
	"time"
)

// Types of checks.
const (
	TCP     = "tcp"     // connects; where Send or Expect is given, it also sends and reads
	UDP     = "udp"     // sends a datagram, and waits for an answer
	ICMP    = "icmp"    // sends an echo request, and waits for its reply
	ARP     = "arp"     // has the kernel ask for the Ethernet address by which packets go there; IPv6: by NDP
	HTTP    = "http"    // sends a request, and compares the status and the body
	HTTPS   = "https"   // the same over TLS
	GRPC    = "grpc"    // calls grpc.health.v1.Health/Check, without TLS
	Command = "command" // runs a program, whose exit status decides
)

// Check says how backends are probed. A field's zero value stands for its default, which
// WithDefaults fills in. It must not change while a Checker has it.
type Check struct {
	Type     string
	Interval time.Duration // from the start of a check to that of the next, give or take 10 %
	Timeout  time.Duration // at most the interval
	Rise     int           // successes in a row that make a dead backend alive
	Fall     int           // failures in a row that make a backend dead; one of which nothing is known counts as living
	Port     uint16        // 0: the backend's

	Host        string // http, https: the Host header; https: the name in the certificate, too
	Path        string // http, https
	Method      string // http, https
	StatusFirst int    // http, https: the first status that means success
	StatusLast  int    // http, https: the last one
	Body        string // http, https: what the answer's first 64 KiB contain
	Insecure    bool   // https: any certificate will do

	Service string // grpc: whose health is asked for; empty: the server's as a whole

	Send   string // tcp, udp: what to send
	Expect string // tcp, udp: what the answer contains; empty: for udp, any answer will do

	// Command is a program and its arguments. It finds SLUICE_FARM, SLUICE_BACKEND,
	// SLUICE_ADDRESS and SLUICE_PORT in its environment, which has nothing else but PATH. Exit
	// status 0 means success. The first line of its output is the reason that is shown.
	Command []string
}

// Key names a backend of a farm.
type Key struct{ Farm, Backend string }

// Target is what to probe, and how.
type Target struct {
	Check *Check // valid, as Validate says
	Addr  netip.Addr
	Port  uint16
}

// Result is what is known of a backend.
type Result struct {
	Key
	Up    bool
	Why   string    // what the check found that decided this, while it is down the newest one, in words for people
	Since time.Time // when Up last changed, or was first known
}
