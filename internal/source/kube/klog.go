package kube

import (
	"context"
	"log/slog"

	"k8s.io/klog/v2"
)

// TakeLogs sends what client-go logs to log, at the level debug: what matters of
// it, the source says itself. It acts on the whole process and is to be called
// before anything that logs.
func TakeLogs(log *slog.Logger) { klog.SetSlogLogger(slog.New(quiet{log.Handler()})) }

// quiet makes all records debug ones.
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
