// Command load sends GET requests to one URL at a fixed rate, and remembers how each of them ended. It begins at once and
// ends with its input, and then prints everything as JSON.
//
// Each client is a http.Client of Go with its own connection. That client never repeats a request by itself, with one
// exception: if the server closes an idle connection before it has answered anything, it sends the request again on a
// new connection.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"strings"
	"sync"
	"time"
)

// request is one request. Times are in microseconds, and At is since the epoch.
type request struct {
	Client int    `json:"c"`
	At     int64  `json:"at"`
	Took   int64  `json:"took"`
	Answer string `json:"a,omitempty"` // the first word
	Error  string `json:"e,omitempty"`
}

// patience is when a request without an answer has failed.
const patience = 5 * time.Second

func main() {
	url := flag.String("url", "", "what to ask")
	rate := flag.Float64("rate", 100, "requests a second, of all clients together")
	clients := flag.Int("clients", 8, "how many clients send them")
	keepAlive := flag.Bool("keep-alive", false, "use a connection again")
	flag.Parse()
	stop := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	sent := make([][]request, *clients)
	var all sync.WaitGroup
	for i := range sent {
		pace := time.Duration(float64(*clients) / *rate * float64(time.Second))
		all.Go(func() {
			time.Sleep(pace * time.Duration(i) / time.Duration(*clients))
			sent[i] = send(i, *url, pace, *keepAlive, stop)
		})
	}
	all.Wait()
	out := json.NewEncoder(os.Stdout)
	for _, some := range sent {
		for _, r := range some {
			if err := out.Encode(r); err != nil {
				fmt.Fprintln(os.Stderr, "load:", err)
				os.Exit(1)
			}
		}
	}
}

// send sends one request each pace. After a slow answer it is late, and catches up.
func send(client int, url string, pace time.Duration, keepAlive bool, stop <-chan struct{}) (sent []request) {
	transport := &http.Transport{DisableKeepAlives: !keepAlive, MaxIdleConnsPerHost: 1}
	defer transport.CloseIdleConnections()
	asker := &http.Client{Transport: transport, Timeout: patience}
	for due := time.Now(); ; due = due.Add(pace) {
		select {
		case <-stop:
			return sent
		case <-time.After(time.Until(due)):
		}
		began := time.Now()
		answer, err := ask(asker, url)
		r := request{Client: client, At: began.UnixMicro(), Took: time.Since(began).Microseconds(), Answer: answer}
		if err != nil {
			r.Error = err.Error()
		}
		sent = append(sent, r)
	}
}

func ask(asker *http.Client, url string) (string, error) {
	connected := false
	trace := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }})
	get, err := http.NewRequestWithContext(trace, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := asker.Do(get)
	switch {
	case err != nil && !connected:
		return "", fmt.Errorf("not connected: %w", errors.Unwrap(err))
	case err != nil:
		return "", fmt.Errorf("connected, not answered: %w", errors.Unwrap(err))
	}
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close() // it has been read
	switch {
	case err != nil:
		return "", err
	case response.StatusCode != http.StatusOK:
		return "", fmt.Errorf("%s: %s", response.Status, body)
	}
	word, _, _ := strings.Cut(string(body), " ")
	return word, nil
}
