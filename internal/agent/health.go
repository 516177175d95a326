package agent

import (
	"fmt"
	"net/http"
	"sync/atomic"
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

	// These are nil if there is none.
	updated atomic.Pointer[time.Time] // when the kernel last had all that was wanted
	pending atomic.Pointer[time.Time] // since when a change has been waiting
	turned  atomic.Pointer[time.Time] // when the loop last ran
	failure atomic.Pointer[string]    // why the last attempt failed
}

// beat records a pass of the loop.
func (h *health) beat() { h.turned.Store(new(h.now())) }

// failed records that an attempt to program the kernel failed, and why.
func (h *health) failed(err error) { h.failure.Store(new(err.Error())) }

// alive reports whether the loop runs, whether or not its attempts succeed. One attempt may take
// longer than kube-proxy's sync period, for example the first one with a million endpoints.
func (h *health) alive() bool { return h.within(&h.turned, max(h.limit, unhealthyAfter)) }

// within reports whether a moment is less long ago than that, or there was none.
func (h *health) within(moment *atomic.Pointer[time.Time], limit time.Duration) bool {
	at := moment.Load()
	return at == nil || h.now().Sub(*at) < limit
}

// queued records that a change waits for the kernel.
func (h *health) queued(since time.Time) { h.pending.CompareAndSwap(nil, &since) }

// applied records that the kernel has all that was wanted.
func (h *health) applied() {
	h.updated.Store(new(h.now()))
	h.pending.Store(nil)
	h.failure.Store(nil)
}

// healthy reports whether changes reach the kernel. An agent that has not read its sources yet is
// healthy, but not ready.
func (h *health) healthy() bool { return h.within(&h.pending, h.limit) }

// ready reports whether the kernel has once had all that was wanted.
func (h *health) ready() bool { return h.updated.Load() != nil }

// unready returns why the agent is not ready; "" if it is.
func (h *health) unready() string {
	switch failure := h.failure.Load(); {
	case failure != nil:
		return "the kernel cannot be programmed: " + *failure
	case !h.ready():
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
	ok, updated := h.healthy(), h.updated.Load()
	b := healthBody{CurrentTime: h.now(), NodeEligible: eligible, Healthy: ok}
	if eligible == nil {
		b.Healthy = h.alive()
	}
	if updated != nil {
		b.LastUpdated, b.Status = *updated, map[string]familyHealth{}
		for _, family := range families {
			b.Status[family] = familyHealth{*updated, ok}
		}
	}
	if ok && b.Healthy {
		// As in kube-proxy, a healthy proxy is up to date now, even if nothing changed for long.
		b.LastUpdated = b.CurrentTime
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
