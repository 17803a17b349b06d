package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"
)

const (
	everyRequest = 50 * time.Millisecond
	attemptTime  = 300 * time.Millisecond
)

// traffic sends requests to the app all the time. The client knows the addresses of all
// nodes and retries a failed request on the next node.
type traffic struct {
	client *http.Client
	urls   []string
	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	answered int
	retried  int // answered, but not by the first node
	failed   int
	longest  time.Duration
	last     time.Time
}

func startTraffic(l *lan, urls []string) *traffic {
	ctx, cancel := context.WithCancel(context.Background())
	t := &traffic{
		// Every request opens a new connection, because an old one proves nothing about new ones.
		client: &http.Client{Transport: &http.Transport{DialContext: l.dial, DisableKeepAlives: true}},
		urls:   urls, cancel: cancel, done: make(chan struct{}), last: time.Now(),
	}
	go t.run(ctx)
	return t
}

func (t *traffic) run(ctx context.Context) {
	defer close(t.done)
	ticker := time.NewTicker(everyRequest)
	defer ticker.Stop()
	first := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		tries := 0
		for i := range t.urls {
			at := (first + i) % len(t.urls)
			if t.ask(ctx, t.urls[at]) {
				first, tries = at, i+1
				break
			}
		}
		if ctx.Err() == nil {
			t.count(tries)
		}
	}
}

func (t *traffic) ask(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	answer, err := t.client.Do(request)
	if err != nil {
		return false
	}
	return answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
}

// count records a request by the attempt that was answered, or 0 if none was.
func (t *traffic) count(tries int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if tries == 0 {
		t.failed++
		return
	}
	if tries > 1 {
		t.retried++
	}
	t.answered++
	now := time.Now()
	t.longest = max(t.longest, now.Sub(t.last))
	t.last = now
}

// String summarizes the requests so far.
func (t *traffic) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fmt.Sprintf("the app has answered %d requests, %d of them only at another node, because the client tries all nodes; "+
		"%d were answered by no node; the longest pause was %d ms",
		t.answered, t.retried, t.failed, t.longest.Milliseconds())
}

// answers waits for the given number of further answers.
func (t *traffic) answers(ctx context.Context, more int) error {
	t.mu.Lock()
	goal := t.answered + more
	t.mu.Unlock()
	return until(ctx, "the app does not answer", func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.answered >= goal
	})
}

func (t *traffic) stop() {
	t.cancel()
	<-t.done
}
