package agent

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
)

// serve answers requests on l until the server is closed.
func serve(log *slog.Logger, what string, s *http.Server, l net.Listener) {
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		log.Error("server ended", "server", what, "error", err)
	}
}

// writeJSON answers a request; a client that has gone away is no error of ours.
func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}
