package nodes

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/cloudless/cloudless/internal/sleep"
)

// Probe reports whether the machine at an address answers anything before ctx ends.
type Probe func(ctx context.Context, machine netip.Addr) bool

// probePort is a port on which hardly any program listens: a refusal is an answer, too.
const probePort = 1

// TCPProbe tries to connect to the machine, which costs it one packet. Any answer proves
// that it is alive. Behind a firewall that drops packets it seems dead.
func TCPProbe(ctx context.Context, machine netip.Addr) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", netip.AddrPortFrom(machine, probePort).String())
	if err == nil {
		_ = conn.Close()
	}
	return err == nil || errors.Is(err, syscall.ECONNREFUSED)
}

const (
	// probePatience is how long an answer may take. Slower machines count as not answering
	// at all, and get the reconnect window.
	probePatience = 180 * time.Millisecond
	// probePause is the pause between two probes in the first second, which decides whether
	// a machine is gone, and probeRest the pause afterwards.
	probePause, probeRest = 100 * time.Millisecond, 500 * time.Millisecond
	// fatalMisses in a row mean that the machine is gone.
	fatalMisses = 3

	// probeEvery is how often a connected machine is probed to learn whether it answers at
	// all. docs/first-app.md and docs/nodes.md name it.
	probeEvery = 5 * time.Minute
	// roundPause is the pause between two rounds of that, of at most maxRound machines.
	roundPause, maxRound = time.Second, 500
	// maxProbes bounds the concurrent probes.
	maxProbes = 1024
)

// ask probes once.
func (l *Loop) ask(ctx context.Context, machine netip.Addr) bool {
	select {
	case l.probes <- struct{}{}:
	case <-ctx.Done():
		return true
	}
	defer func() { <-l.probes }()
	probes, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	return l.probe(probes, machine) || ctx.Err() != nil
}

// suspect probes the machine of a node whose session broke until it no longer answers or
// ctx ends.
func (l *Loop) suspect(ctx context.Context, uid string, machine netip.Addr) {
	began, misses := time.Now(), 0
	for ctx.Err() == nil {
		asked := time.Now()
		if l.ask(ctx, machine) {
			misses = 0
			rest := probePause
			if asked.Sub(began) >= time.Second {
				rest = probeRest
			}
			_ = sleep.For(ctx, time.Until(asked.Add(rest)))
			continue
		}
		if misses++; misses >= fatalMisses {
			l.gone(ctx, uid)
			return
		}
		_ = sleep.For(ctx, time.Until(asked.Add(probePause)))
	}
}

// gone notes that the machine of a node does not answer. ctx ends when the node has a
// session again, which may be just now.
func (l *Loop) gone(ctx context.Context, uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[uid]; e != nil && !e.Connected && ctx.Err() == nil {
		e.Gone = true
		l.mark(uid)
	}
}

// learn finds out whether the machine of a connected node answers probes at all.
func (l *Loop) learn(ctx context.Context, uid string, machine netip.Addr) {
	answers := false
	for range fatalMisses {
		if answers = l.ask(ctx, machine); answers {
			break
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[uid]; e != nil && e.Connected && e.machine == machine && ctx.Err() == nil {
		e.answers = answers
	}
}

// keepProbing probes every connected node now and then, until ctx ends.
func (l *Loop) keepProbing(ctx context.Context) {
	for ctx.Err() == nil {
		for uid, machine := range l.dueForProbe(time.Now()) {
			l.work.Go(func() { l.learn(ctx, uid, machine) })
		}
		select {
		case <-ctx.Done():
		case <-l.unprobed:
			_ = sleep.For(ctx, roundPause/5) // for others that come at the same time
		case <-time.After(probeEvery / 10):
		}
	}
}

// dueForProbe are the machines of connected nodes whose next probe is due.
func (l *Loop) dueForProbe(now time.Time) map[string]netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	due := map[string]netip.Addr{}
	for uid, e := range l.entries {
		if !e.Connected || !e.machine.IsValid() || now.Before(e.learnAt) {
			continue
		}
		if len(due) == maxRound {
			l.stranger()
			break
		}
		e.learnAt = now.Add(probeEvery)
		due[uid] = e.machine
	}
	return due
}

func (l *Loop) stranger() {
	select {
	case l.unprobed <- struct{}{}:
	default:
	}
}
