package kubeproxy

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"time"
)

const bodyTimeout = 5 * time.Second

// Pages serves what kube-proxy does beside its metrics: the configuration under /configz, by its
// group, and profiles under /debug/pprof/ if asked for.
func Pages(c *Config, profiling bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /configz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_ = json.NewEncoder(w).Encode(map[string]*Config{Group: c}) // the client has gone away
	})
	if profiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", func(w http.ResponseWriter, r *http.Request) {
			// The one page that reads a body, for which the agent's server does not wait.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
			pprof.Symbol(w, r)
		})
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}
