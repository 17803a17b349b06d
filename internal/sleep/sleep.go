// Package sleep pauses a goroutine. It must not know what the goroutine waits for.
package sleep

import (
	"context"
	"time"
)

// For returns after a duration, or earlier with the error of the context if that ends first.
func For(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
