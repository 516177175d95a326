package speaker

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
)

// ear is the server's log. What it says of attempts to connect is nowhere else to be had; the rest
// is passed on, but lower than the server thinks it is: that a peer is down is its status, and no
// fault.
type ear struct {
	to    *slog.Logger
	hear  func(about netip.Addr, r heard)
	peer  netip.Addr
	attrs []slog.Attr
}

// stoppedTwice is what the server says when what is left of it is ended.
const stoppedTwice = "failed to stop BGP server"

// heard is something that the log says of a peer.
type heard struct {
	text  string
	vague bool // the peer knows better why there is no session
}

// Enabled implements slog.Handler.
func (e *ear) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (e *ear) Handle(ctx context.Context, r slog.Record) error {
	if e.peer.IsValid() {
		if h, ok := hearing(r); ok {
			e.hear(e.peer, h)
		}
	}
	level := slog.LevelDebug
	if r.Level >= slog.LevelError && r.Message != stoppedTwice {
		level = slog.LevelWarn
	}
	if !e.to.Enabled(ctx, level) {
		return nil
	}
	r = r.Clone()
	r.Level = level
	r.AddAttrs(e.attrs...)
	return e.to.Handler().Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (e *ear) WithAttrs(attrs []slog.Attr) slog.Handler {
	n := *e
	n.attrs = slices.Concat(e.attrs, attrs)
	for _, a := range attrs {
		if a.Key == "Key" {
			n.peer, _ = netip.ParseAddr(a.Value.String())
		}
	}
	return &n
}

// WithGroup implements slog.Handler. The server has no groups.
func (e *ear) WithGroup(string) slog.Handler { return e }
