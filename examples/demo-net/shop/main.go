// Command shop is the app of the demonstration: one program for each of its three services. It answers with its name and
// the answer of the service that it calls.
//
//	shop -calls http://api
package main

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"time"
)

func main() {
	calls := flag.String("calls", "", "URL of the service to call for each request")
	flag.Parse()
	host, err := os.Hostname()
	if err == nil {
		err = serve(host, *calls)
	}
	slog.Error("shop ends", "error", err)
	os.Exit(1)
}

func serve(host, calls string) error {
	// Every request opens a new connection, so that the balancer chooses an endpoint for each.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	server := &http.Server{Addr: ":80", ReadHeaderTimeout: 5 * time.Second}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls == "" {
			fmt.Fprintln(w, host)
			return
		}
		answer, err := client.Get(calls)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer answer.Body.Close()
		w.WriteHeader(answer.StatusCode)
		fmt.Fprintf(w, "%s → ", host)
		_, _ = io.Copy(w, answer.Body)
	})
	return server.ListenAndServe()
}
