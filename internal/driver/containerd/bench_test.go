package containerd

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"

	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/driver/drivertest"
)

// BenchmarkDriver measures the embedded daemon: opening an existing folder, preparing an
// image that is there, starting and removing.
func BenchmarkDriver(b *testing.B) {
	opts := Options{ID: "bench", DataDir: b.TempDir(), RunDir: "/run/cl-bench", Log: slog.New(slog.DiscardHandler)}
	ctx := context.Background()
	open := func(b *testing.B) *Driver {
		d, err := Open(ctx, opts)
		if err != nil {
			b.Fatal(err)
		}
		return d
	}
	b.Cleanup(func() {
		if err := Purge(ctx, opts); err != nil {
			b.Error(err)
		}
	})
	d := open(b)
	ref, archive := drivertest.Image(b)
	if _, err := d.client.Import(d.scope(ctx), archive, client.WithAllPlatforms(true)); err != nil {
		b.Fatal(err)
	}
	task := driver.Task{Image: ref, Command: []string{"sleep", "1000"}, Network: driver.NetworkNone, LogDir: filepath.Join(b.TempDir(), "log")}
	if err := d.Prepare(ctx, task); err != nil {
		b.Fatal(err)
	}
	b.Run("open", func(b *testing.B) {
		for range b.N {
			b.StopTimer()
			if err := d.Close(); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			d = open(b)
		}
	})
	b.Run("start", func(b *testing.B) {
		var removal time.Duration
		for i := range b.N {
			task.ID = fmt.Sprintf("bench-%d", i)
			if _, err := d.Start(ctx, task); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			began := time.Now()
			if err := d.Remove(ctx, task.ID); err != nil {
				b.Fatal(err)
			}
			removal += time.Since(began)
			b.StartTimer()
		}
		b.ReportMetric(float64(removal.Nanoseconds())/float64(b.N), "ns/remove")
	})
	if err := d.Close(); err != nil {
		b.Fatal(err)
	}
}
