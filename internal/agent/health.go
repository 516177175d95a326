package agent

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// unhealthyAfter is how long a change may wait before the agent counts as unhealthy. kube-proxy
// allows twice its sync period, which is 30 s.
const unhealthyAfter = time.Minute

// health is kube-proxy's notion of a working proxy: no change waits too long for the kernel.
// Separately, it holds whether the agent works at all: a kernel that refuses changes is no reason
// to end the agent. It is safe for concurrent use.
type health struct {
	limit    time.Duration // how long a change may wait
	now      func() time.Time
	eligible func() bool // false while the node is being deleted, so that load balancers leave it
	// blocked, if set, says why the agent is not ready though it has programmed all that it knows;
	// "" if it is ready.
	blocked func() string

	mu      sync.Mutex
	updated time.Time // when the kernel last had all that was wanted
	pending time.Time // since when a change has been waiting; zero if none is
	turned  time.Time // when the loop last ran; zero before its first pass
	failure string    // why the last attempt failed; "" if it succeeded
}

// beat records a pass of the loop.
func (h *health) beat() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turned = h.now()
}

// failed records that an attempt to program the kernel failed, and why.
func (h *health) failed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failure = err.Error()
}

// alive reports whether the loop runs, whether or not its attempts succeed. One attempt may take
// longer than kube-proxy's sync period, for example the first one with a million endpoints.
func (h *health) alive() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.turned.IsZero() || h.now().Sub(h.turned) < max(h.limit, unhealthyAfter)
}

// queued records that a change waits for the kernel.
func (h *health) queued(since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pending.IsZero() {
		h.pending = since
	}
}

// applied records that the kernel has all that was wanted.
func (h *health) applied() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.updated, h.pending, h.failure = h.now(), time.Time{}, ""
}

// healthy reports whether changes reach the kernel, and when they last did. An agent that has not
// read its sources yet is healthy, but not ready.
func (h *health) healthy() (ok bool, updated time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pending.IsZero() || h.now().Sub(h.pending) < h.limit, h.updated
}

// ready reports whether the kernel has once had all that was wanted.
func (h *health) ready() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.updated.IsZero()
}

// unready returns why the agent is not ready; "" if it is.
func (h *health) unready() string {
	h.mu.Lock()
	failure, ready := h.failure, !h.updated.IsZero()
	h.mu.Unlock()
	switch {
	case failure != "":
		return "the kernel cannot be programmed: " + failure
	case !ready:
		return "the services have not been programmed yet"
	case h.blocked != nil:
		return h.blocked()
	}
	return ""
}

// healthBody is what kube-proxy 1.37 answers.
type healthBody struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"` // only what was asked for, whatever happens to the node
	Status       map[string]familyHealth `json:"status,omitempty"`
}

// familyHealth is the health of an address family. Both are always the same here.
type familyHealth struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// body is the answer of /healthz, or of /livez if eligible is nil.
func (h *health) body(eligible *bool) healthBody {
	ok, updated := h.healthy()
	b := healthBody{LastUpdated: updated, CurrentTime: h.now(), NodeEligible: eligible, Healthy: ok}
	if eligible == nil {
		b.Healthy = h.alive()
	}
	if ok && b.Healthy {
		// As in kube-proxy, a healthy proxy is up to date now, even if nothing changed for long.
		b.LastUpdated = b.CurrentTime
	}
	if !updated.IsZero() {
		b.Status = map[string]familyHealth{}
		for _, family := range families {
			b.Status[family] = familyHealth{updated, ok}
		}
	}
	return b
}

// handler serves kube-proxy's /healthz and /livez, and /readyz. It counts the answers of the first
// two by code.
func (h *health) handler(healthz, livez *prometheus.CounterVec) http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, count *prometheus.CounterVec, eligible *bool) {
		body, code := h.body(eligible), http.StatusServiceUnavailable
		if body.Healthy && (eligible == nil || *eligible) {
			code = http.StatusOK
		}
		count.WithLabelValues(fmt.Sprint(code)).Inc()
		writeJSON(w, code, body)
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		eligible := h.eligible()
		answer(w, healthz, &eligible)
	})
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { answer(w, livez, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if why := h.unready(); why != "" {
			http.Error(w, "not ready: "+why, http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	return mux
}
