package sleep_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudless/cloudless/internal/sleep"
)

func TestForEndsWithTheDurationOrTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		if err := sleep.For(ctx, time.Minute); err != nil || time.Since(began) != time.Minute {
			t.Errorf("returned %v after %s", err, time.Since(began))
		}
		time.AfterFunc(time.Second, cancel)
		began = time.Now()
		if err := sleep.For(ctx, time.Minute); !errors.Is(err, context.Canceled) || time.Since(began) != time.Second {
			t.Errorf("returned %v after %s", err, time.Since(began))
		}
	})
}
