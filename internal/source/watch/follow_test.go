package watch

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
)

// Once the time is over, the writer is named, though what reads may have ended with it.
func TestFlushNamesWhoIsWriting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		reads := 0
		err := Flush(ctx, "the folder", func() ([]string, error) {
			if reads++; reads < 3 {
				return []string{"late.yaml"}, nil
			}
			cancel()
			return nil, errors.New("its watcher has ended")
		})
		if err == nil || !strings.Contains(err.Error(), "still writing late.yaml") || !errors.Is(err, context.Canceled) {
			t.Errorf("flush: %v", err)
		}
	})
	ended := errors.New("ended")
	if err := Flush(t.Context(), "the folder", func() ([]string, error) { return nil, ended }); err != ended {
		t.Errorf("flush of what has ended: %v", err)
	}
	if err := Flush(t.Context(), "the folder", func() ([]string, error) { return nil, nil }); err != nil {
		t.Errorf("flush: %v", err)
	}
}
