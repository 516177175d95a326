package kube

import (
	"context"
	"log/slog"

	"k8s.io/klog/v2"
)

// TakeLogs sends client-go's log to log, at the level debug: the source itself reports what
// matters. It acts on the whole process, and has to be called before anything logs.
func TakeLogs(log *slog.Logger) { klog.SetSlogLogger(slog.New(quiet{log.Handler()})) }

// quiet makes all records debug records.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelDebug)
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return q.Handler.Handle(ctx, r)
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }

func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }
