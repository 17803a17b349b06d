// Command stranger attacks a server without an identity in its cluster. It runs all its attacks at once, with as much
// of one core as it is given, until it is stopped. Then it reports, as JSON, how much CPU it has used and how often it
// has done what. Without an address it only uses CPU, for comparison. The server must be on this machine.
//
//	stranger -share 0.5 127.0.0.1:7700
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"maps"
	"net"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"syscall"
)

// report is a stranger's final report.
type report struct {
	// Share is how much of one core was used.
	Share float64
	// Done is how often each attack was carried out, Failed how often it got no further than its connection.
	Done, Failed map[string]int
}

func main() {
	share := flag.Float64("share", 0.5, "use this much of one core")
	only := flag.String("only", "", "make this attack alone")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	t := newThrottle(*share)
	r := report{Done: map[string]int{}, Failed: map[string]int{}}
	if flag.NArg() == 0 {
		x := 1
		for t.wait(ctx) {
			x = spin(x)
		}
		runtime.KeepAlive(x)
	} else {
		r.attack(ctx, t, flag.Arg(0), *only)
	}
	r.Share = t.used()
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		log.Fatal(err)
	}
}

// attack runs all attacks in parallel, each with a few workers. Every worker has its own address, so that limits for
// one address do not stop any of them.
func (r *report) attack(ctx context.Context, t *throttle, address, only string) {
	const workers = 4
	var all sync.WaitGroup
	var mu sync.Mutex
	for i, name := range slices.Sorted(maps.Keys(attacks)) {
		attack := attacks[name]
		if only != "" && name != only {
			continue
		}
		for worker := range workers {
			all.Go(func() {
				v := &victim{address: address, throttle: t, from: net.IPv4(127, 1, byte(i), byte(1+worker))}
				defer v.release()
				for t.wait(ctx) {
					err := attack(ctx, v)
					mu.Lock()
					r.Done[name]++
					if err != nil {
						r.Failed[name]++
					}
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
}

// spin uses the CPU for a moment.
func spin(x int) int {
	for range 100_000 {
		x = x*1664525 + 1013904223
	}
	return x
}
