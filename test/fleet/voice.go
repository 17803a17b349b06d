package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cloudless/cloudless/test/fleet/simulated"
)

// voice reports the fleet's status: as a live line on a terminal, as lines elsewhere, as JSON for programs.
type voice struct {
	to   io.Writer
	json bool
	live bool // lines may be overwritten

	mu   sync.Mutex
	last string
}

func newVoice(to io.Writer, asJSON bool) *voice {
	return &voice{to: to, json: asJSON, live: !asJSON && isTerminal(to)}
}

// word is one report as JSON. Fields that do not apply are omitted.
type word struct {
	Did     string         `json:"did,omitempty"`
	Nodes   []nodeWord     `json:"nodes,omitempty"`
	Error   string         `json:"error,omitempty"`
	Seconds float64        `json:"seconds,omitempty"`
	Stats   map[string]any `json:"stats,omitempty"`
	// Millis are how long changes took.
	Millis []float64 `json:"millis,omitempty"`
}

type nodeWord struct {
	UID     string `json:"uid"`
	Name    string `json:"name"`
	Address string `json:"address,omitempty"`
}

func (v *voice) say(w word, text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.json {
		_ = json.NewEncoder(v.to).Encode(w)
		return
	}
	if v.live {
		text = "\r\x1b[K" + text
		v.last = ""
	}
	fmt.Fprintln(v.to, text)
}

// status shows a line that the next one replaces, if possible.
func (v *voice) status(w word, text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.json:
		_ = json.NewEncoder(v.to).Encode(w)
	case v.live:
		fmt.Fprint(v.to, "\r\x1b[K"+text)
	case text != v.last:
		fmt.Fprintln(v.to, text)
	}
	v.last = text
}

// enrolling shows the progress of joining, on a terminal.
func (v *voice) enrolling(nodes int) func(int) {
	if !v.live {
		return nil
	}
	return func(done int) {
		if done%50 == 0 || done == nodes {
			v.status(word{}, fmt.Sprintf("joining: %d of %d nodes", done, nodes))
		}
	}
}

func (v *voice) enrolled(nodes int, took time.Duration) {
	v.say(word{Did: "enroll", Seconds: took.Seconds()}, fmt.Sprintf("%d nodes have joined in %.1f s", nodes, took.Seconds()))
}

func (v *voice) refused(err error) { v.say(word{Error: err.Error()}, err.Error()) }

// changes says how long changes took, which are in order.
func (v *voice) changes(times []float64) {
	text := "no change has arrived"
	if len(times) > 0 {
		text = fmt.Sprintf("%d changes have arrived, half of them within %.3g ms, 95 %% within %.3g ms, all within %.3g ms",
			len(times), times[len(times)/2], times[len(times)*95/100], times[len(times)-1])
	}
	v.say(word{Did: "changes", Millis: times}, text)
}

func (v *voice) did(what string, nodes []*simulated.Node) {
	w := word{Did: what}
	for _, n := range nodes {
		one := nodeWord{UID: n.UID(), Name: n.Name()}
		if n.Source().IsValid() {
			one.Address = n.Source().String()
		}
		w.Nodes = append(w.Nodes, one)
	}
	v.say(w, fmt.Sprintf("%s: %d nodes", what, len(nodes)))
}

// quietly is how often lines come if they cannot be overwritten.
const quietly = 10

// follow reports every second how the fleet is doing, and at the end what it has done.
func (v *voice) follow(ctx context.Context, fleet *simulated.Fleet, before memory) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	last, at := fleet.Stats(), time.Now()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			s := fleet.Stats()
			v.say(word{Did: "end"}, fmt.Sprintf("ended: %d sessions, %d heartbeats, %d words about replicas", s.Opened, s.Heartbeats, s.Reported))
			return
		case now := <-ticker.C:
			if !v.live && !v.json && n%quietly != 0 {
				continue
			}
			s := fleet.Stats()
			w, text := describe(s, last, now.Sub(at), memoryNow().minus(before))
			v.status(w, text)
			last, at = s, now
		}
	}
}

func describe(s, before simulated.Stats, took time.Duration, used memory) (word, string) {
	beats := float64(s.Heartbeats-before.Heartbeats) / took.Seconds()
	perNode := used.resident / int64(s.Nodes) >> 10
	w := word{Stats: map[string]any{
		"nodes": s.Nodes, "connected": s.Connected, "sessions": s.Opened, "heartbeats_per_s": int(beats + 0.5), "assigned": s.Assigned,
		"reported": s.Reported, "running": s.Running, "kib_per_node": perNode, "goroutines": used.goroutines, "late_ms": s.Late.Milliseconds(),
	}}
	text := fmt.Sprintf("%d of %d nodes connected, %.0f heartbeats a second, %d replicas running, %d sessions so far, %d KiB and %.1f goroutines per node",
		s.Connected, s.Nodes, beats, s.Running, s.Opened, perNode, float64(used.goroutines)/float64(s.Nodes))
	if s.Late > time.Second {
		text += fmt.Sprintf(", heartbeats up to %.1f s late", s.Late.Seconds())
	}
	if s.LastError != nil {
		w.Stats["last_error"] = s.LastError.Error()
		if s.Connected < s.Nodes {
			text += "; last error: " + s.LastError.Error()
		}
	}
	return w, text
}

// memory is what this process uses.
type memory struct {
	resident   int64 // bytes
	goroutines int
}

func (m memory) minus(before memory) memory {
	return memory{max(0, m.resident-before.resident), m.goroutines - before.goroutines}
}

// memoryNow reads it from the kernel, because that counts everything.
func memoryNow() memory {
	m := memory{goroutines: runtime.NumGoroutine()}
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return m
	}
	if fields := strings.Fields(string(data)); len(fields) > 1 {
		pages, _ := strconv.ParseInt(fields[1], 10, 64)
		m.resident = pages * int64(os.Getpagesize())
	}
	return m
}
