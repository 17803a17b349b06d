// Command hello is the example app: it answers every request with a greeting.
//
//	CGO_ENABLED=0 go build -o hello ./examples/hello
//	cloudless run ./hello --name web --publish 8080:8080
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	listen := flag.String("listen", ":8080", "address to listen on")
	greeting := flag.String("greeting", "hello", "what to say")
	failAfter := flag.Duration("fail-after", 0, "exit with an error after this time, as a bad release does")
	flag.Parse()
	if *failAfter > 0 {
		time.AfterFunc(*failAfter, func() {
			slog.Error("hello ends", "error", "told to fail")
			os.Exit(1)
		})
	}
	if err := run(*listen, *greeting); err != nil {
		slog.Error("hello ends", "error", err)
		os.Exit(1)
	}
}

// run serves until SIGTERM. Then it takes no new connections, closes idle ones, and answers the requests that it has.
func run(listen, greeting string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	server := &http.Server{
		Addr:              listen,
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			slog.Info("request", "path", r.URL.Path, "from", r.RemoteAddr)
			_, _ = fmt.Fprintf(w, "%s from %s\n", greeting, host)
		}),
	}
	drained := make(chan error, 1)
	context.AfterFunc(ctx, func() { drained <- server.Shutdown(context.Background()) })
	slog.Info("listening", "address", listen)
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		return err
	}
	return <-drained
}
