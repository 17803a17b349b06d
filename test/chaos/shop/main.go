// Command shop is the program of the service that the chaos test releases again and again. It answers requests with its
// name and its release until SIGTERM, and says on another port when it is ready.
//
//	shop RELEASE    "never-ready-N" never gets ready, "exits-N" ends after two seconds, all others are good
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	warmUp   = 300 * time.Millisecond
	lifetime = 2 * time.Second // of a release that exits
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(release string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var ready atomic.Bool
	if !strings.HasPrefix(release, "never-ready") {
		time.AfterFunc(warmUp, func() { ready.Store(true) })
	}
	if strings.HasPrefix(release, "exits") {
		time.AfterFunc(lifetime, func() { os.Exit(1) })
	}
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	// The port of the probe stays open while the replica answers its last requests.
	go func() {
		_ = http.ListenAndServe(":8081", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if !ready.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
	}()
	server := &http.Server{Addr: ":8080", Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, name, release)
	})}
	drained := make(chan error, 1)
	context.AfterFunc(ctx, func() { drained <- server.Shutdown(context.Background()) })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-drained
}
