package agent

import (
	"net/http"
	"time"

	"sluice.dev/sluice/internal/lib/connlimit"
)

// Time-outs of a request to an HTTP server.
const (
	headerTimeout = 5 * time.Second // until the client has sent the whole header
	probeTimeout  = 10 * time.Second
	// pageTimeout is how long metrics and profiles may take, beside the duration requested for a
	// profile. A scraper of a busy machine waits longer than a probe.
	pageTimeout = time.Minute
)

// answering wraps a handler that needs no request body. It does not wait for a body that a client
// announces: otherwise the client could hold the connection as long as it likes.
// (http.Server.ReadTimeout would do, but ends longer answers as well.)
func answering(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer connlimit.Answer(r)()
		if r.ContentLength != 0 {
			w.Header().Set("Connection", "close")
			_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0))
		}
		h.ServeHTTP(w, r)
	})
}

// limits bound how many file descriptors clients may use; the rest is for the kernel, the sources
// and their files.
type limits struct {
	socket, metrics, health *connlimit.Limit
	checks                  *connlimit.Limit // of all healthCheckNodePorts together
	checkPorts              int              // healthCheckNodePorts with a listener
}

// shareDescriptors divides up the descriptors that the process may have.
func shareDescriptors() limits {
	l := limits{socket: connlimit.Share(4, 256), metrics: connlimit.Share(16, 32), health: connlimit.Share(8, 128), checks: connlimit.Share(4, 256)}
	l.checkPorts = connlimit.Descriptors() - l.socket.Most() - l.metrics.Most() - l.health.Most() - l.checks.Most()
	return l
}
