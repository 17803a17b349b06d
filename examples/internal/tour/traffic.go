package tour

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"
)

const everyRequest = 50 * time.Millisecond

// Traffic sends requests to the app all the time. With several URLs, the client retries a failed request on the next
// one.
type Traffic struct {
	client  *http.Client
	urls    []string
	attempt time.Duration
	cancel  context.CancelFunc
	done    chan struct{}

	mu       sync.Mutex
	answered int
	retried  int // answered, but not by the first URL
	failed   int
	longest  time.Duration
	last     time.Time
	why      error          // of the last failure
	texts    map[string]int // how often each answer came since the last sample
}

// StartTraffic begins to send requests from a machine. An attempt that takes longer than the given time has failed.
func (t *Tour) StartTraffic(from string, attempt time.Duration, urls ...string) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Traffic = &Traffic{
		// Every request opens a new connection, because an old one proves nothing about new ones.
		client: &http.Client{Transport: &http.Transport{DialContext: t.Network.dialer(from), DisableKeepAlives: true}},
		urls:   urls, attempt: attempt, cancel: cancel, done: make(chan struct{}), last: time.Now(), texts: map[string]int{},
	}
	go t.Traffic.run(ctx)
}

func (t *Traffic) run(ctx context.Context) {
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
		tries, text, err := 0, "", error(nil)
		for i := range t.urls {
			at := (first + i) % len(t.urls)
			if text, err = t.ask(ctx, t.urls[at]); err == nil {
				first, tries = at, i+1
				break
			}
		}
		if ctx.Err() == nil {
			t.count(tries, text, err)
		}
	}
}

func (t *Traffic) ask(ctx context.Context, url string) (text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.attempt)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	answer, err := t.client.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	text = strings.TrimSpace(string(body))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, text)
	}
	return text, err
}

// count records a request by the attempt that was answered, or 0 if none was.
func (t *Traffic) count(tries int, text string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if tries == 0 {
		t.failed++
		t.why = err
		return
	}
	if tries > 1 {
		t.retried++
	}
	t.answered++
	t.texts[text]++
	now := time.Now()
	t.longest = max(t.longest, now.Sub(t.last))
	t.last = now
}

// String summarizes the requests so far.
func (t *Traffic) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.urls) == 1 {
		return fmt.Sprintf("the app has answered %d requests; %d failed; the longest pause was %d ms", t.answered, t.failed, t.longest.Milliseconds())
	}
	return fmt.Sprintf("the app has answered %d requests, %d of them only at another node, because the client tries all nodes; "+
		"%d were answered by no node; the longest pause was %d ms",
		t.answered, t.retried, t.failed, t.longest.Milliseconds())
}

// Answers waits for the given number of further answers.
func (t *Traffic) Answers(ctx context.Context, more int) error {
	_, err := t.Sample(ctx, more)
	return err
}

// Sample waits for the given number of further answers and returns how often each text was among them.
func (t *Traffic) Sample(ctx context.Context, more int) (map[string]int, error) {
	t.mu.Lock()
	goal := t.answered + more
	t.texts = map[string]int{}
	t.mu.Unlock()
	err := Until(ctx, "the app does not answer", func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.answered >= goal
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.texts), err
}

// Failed is the number of requests without an answer so far, and why the last of them failed.
func (t *Traffic) Failed() (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed, t.why
}

func (t *Traffic) stop() {
	t.cancel()
	<-t.done
}
