package cli

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
)

// What says nothing is not in the log; a zero and a false do say something.
func TestLogLeavesOutEmptyAttributes(t *testing.T) {
	var out strings.Builder
	log := slog.New(slog.NewTextHandler(&out, LogOptions(slog.LevelInfo)))
	var none error
	log.With("kind", "").Info("it is so", "text", "", "nil", nil, "error", none, "list", []string(nil), "ref", model.Ref{}, "kindName", model.Kind(""), "since", time.Time{},
		"zero", 0, "false", false, "took", time.Duration(0), "why", errors.New("it is"), "object", model.Ref{Kind: model.NodeKind, Name: model.Name{Name: "n"}})
	if _, got, _ := strings.Cut(out.String(), " "); got != `level=INFO msg="it is so" zero=0 false=false took=0s why="it is" object="Node n"`+"\n" {
		t.Errorf("it logs %s", got)
	}
	out.Reset()
	log.Info("")
	if !strings.Contains(out.String(), "level=INFO") {
		t.Errorf("it logs %s", out.String())
	}
}
