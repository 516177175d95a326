package cli

import (
	"errors"
	"io"
	"log"
	"log/slog"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/model"
)

// What says nothing is not in the log; a zero and a false do say something.
func TestLogLeavesOutEmptyAttributes(t *testing.T) {
	var out strings.Builder
	log := TextLog(&out, slog.LevelInfo)
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

// A log for people has no Go syntax, whatever is logged.
func TestLogIsReadable(t *testing.T) {
	var out strings.Builder
	log := TextLog(&out, slog.LevelInfo)
	type peer struct {
		Name  string
		Port  int
		Next  *peer
		Empty string
		inner int
	}
	loop := &peer{Name: "loop"}
	loop.Next = loop
	if sentence(reflect.ValueOf(loop), 0) == "" || sentence(reflect.ValueOf((*model.Ref)(nil)), 0) != "" {
		t.Error("what holds itself, or nothing, is not written")
	}
	log.Info("it is so", "list", []string{"a", "b"}, "objects", map[string]int{"Pod": 3, "Node": 2}, "refs", []model.Ref{{Kind: model.NodeKind, Name: model.Name{Name: "n"}}},
		"peer", &peer{Name: "tor", Port: 179, Next: &peer{Name: "x"}, inner: 1}, "errors", []error{errors.New("one"), errors.New("two")}, "kind", model.NodeKind,
		"prefixes", []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, "bytes", []byte("text"), "took", time.Second, "any", []any{1, nil, true})
	_, got, _ := strings.Cut(out.String(), " ")
	want := `level=INFO msg="it is so" list="a, b" objects="Node 2, Pod 3" refs="Node n" peer="Name tor, Port 179, Next Name x" errors="one, two" kind=Node prefixes=10.0.0.0/8 bytes=text took=1s any="1, , true"` + "\n"
	if got != want {
		t.Errorf("it logs\n%swant\n%s", got, want)
	}
}

// What libraries remark by the standard log is not among what a command prints.
func TestLibrariesRemarks(t *testing.T) {
	before := log.Writer()
	defer log.SetOutput(before)
	Execute(t.Context(), &cobra.Command{Use: "x", Run: func(*cobra.Command, []string) {}}, nil, io.Discard, io.Discard)
	if log.Writer() != io.Discard {
		t.Error("it is printed")
	}
}
