package kubeproxy

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
)

// Pages serves what kube-proxy does beside its metrics: the configuration under /configz, by its group, and profiles under
// /debug/pprof/ if asked for.
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
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}
