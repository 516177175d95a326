package kubetest

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// until retries until success. It returns the last error if patience ends first, or the first final
// error.
func until(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	const most = 200 * time.Millisecond
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, most) {
		err := try()
		if err == nil {
			return nil
		}
		if _, ok := errors.AsType[final](err); ok {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%w, after %v", err, patience)
		}
	}
}
