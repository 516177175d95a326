package kubeproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"sluice.dev/sluice/internal/lib/wake"
)

// ErrChanged says that the file holds something else now.
var ErrChanged = errors.New("the configuration file has changed: start again to follow it")

// pollInterval is the interval at which the file is read. A ConfigMap takes a minute to
// come to a node, so that nobody waits for this.
const pollInterval = 2 * time.Second

// Watch returns ErrChanged once the file holds something else than text, and nil when ctx ends. It
// looks at the content, so that it follows a ConfigMap, whose files are replaced under a link. A
// file that cannot be read is one that is being replaced.
func Watch(ctx context.Context, path string, text []byte) error {
	for wake.Sleep(ctx, pollInterval) {
		if now, err := os.ReadFile(path); err == nil && !bytes.Equal(now, text) {
			return fmt.Errorf("%s: %w", path, ErrChanged)
		}
	}
	return nil
}
