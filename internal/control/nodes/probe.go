package nodes

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// Probe reports whether the machine at an address answers anything before ctx
// ends.
type Probe func(ctx context.Context, machine netip.Addr) bool

// probePort is one on which hardly anybody listens: a refusal is an answer too.
const probePort = 1

// TCPProbe asks the machine for a connection, which costs it one packet.
// Whatever it answers, it lives; where a firewall eats the question, it seems
// not to.
func TCPProbe(ctx context.Context, machine netip.Addr) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", netip.AddrPortFrom(machine, probePort).String())
	if err == nil {
		_ = conn.Close()
	}
	return err == nil || errors.Is(err, syscall.ECONNREFUSED)
}

const (
	// probePatience is how long an answer may take; machines that are slower
	// count as not answering at all, and are given the reconnect window.
	probePatience = 180 * time.Millisecond
	// probePause is between two questions in the first second, when it is decided
	// whether a machine is gone, and probeRest afterwards.
	probePause, probeRest = 100 * time.Millisecond, 500 * time.Millisecond
	// fatalMisses in a row mean that the machine is gone.
	fatalMisses = 3

	// learnEvery is how often it is tried whether a machine answers at all. docs/first-app.md and
	// docs/nodes.md name it.
	learnEvery = 5 * time.Minute
	// learnPause is between two rounds of that, of at most learnAtOnce machines.
	learnPause, learnAtOnce = time.Second, 500
	// maxProbes bounds the questions that are open at the same time.
	maxProbes = 1024
)

// ask asks once.
func (l *Loop) ask(ctx context.Context, machine netip.Addr) bool {
	select {
	case l.asking <- struct{}{}:
	case <-ctx.Done():
		return true
	}
	defer func() { <-l.asking }()
	asking, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	return l.probe(asking, machine) || ctx.Err() != nil
}

// suspect asks the machine of a node whose session broke until it does not
// answer any more or ctx ends.
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
			sleep(ctx, time.Until(asked.Add(rest)))
			continue
		}
		if misses++; misses >= fatalMisses {
			l.gone(ctx, uid)
			return
		}
		sleep(ctx, time.Until(asked.Add(probePause)))
	}
}

// gone notes that the machine of a node does not answer. ctx ends when the node
// has a session again, which may be just now.
func (l *Loop) gone(ctx context.Context, uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[uid]; e != nil && !e.Connected && ctx.Err() == nil {
		e.Gone = true
		l.mark(uid)
	}
}

// learn finds out whether the machine of a connected node answers at all.
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

// keepLearning learns of every connected node now and then, until ctx ends.
func (l *Loop) keepLearning(ctx context.Context) {
	for ctx.Err() == nil {
		for uid, machine := range l.unlearned(time.Now()) {
			l.work.Go(func() { l.learn(ctx, uid, machine) })
		}
		select {
		case <-ctx.Done():
		case <-l.strangers:
			sleep(ctx, learnPause/5) // for others that come at the same time
		case <-time.After(learnEvery / 10):
		}
	}
}

// unlearned are the machines of connected nodes that were not asked for long.
func (l *Loop) unlearned(now time.Time) map[string]netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	due := map[string]netip.Addr{}
	for uid, e := range l.entries {
		if !e.Connected || !e.machine.IsValid() || now.Before(e.learnAt) {
			continue
		}
		if len(due) == learnAtOnce {
			l.stranger()
			break
		}
		e.learnAt = now.Add(learnEvery)
		due[uid] = e.machine
	}
	return due
}

func (l *Loop) stranger() {
	select {
	case l.strangers <- struct{}{}:
	default:
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
