package discover

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// ErrNoNetwork means that there is no network to search.
var ErrNoNetwork = errors.New("this machine has no network on which others could answer")

// The question is repeated, because datagrams get lost: soon, and then less often.
const (
	firstPause   = 200 * time.Millisecond
	longestPause = 2 * time.Second
)

// Search looks for servers on all networks of this machine, and calls visit with each that
// answers, once, until visit returns true or ctx ends; the latter is no error.
func Search(ctx context.Context, visit func(Found) (done bool)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	id := uint16(rand.Uint32())
	message, err := query(id)
	if err != nil {
		return err
	}
	answers := make(chan Found)
	ended := make(chan struct{})
	var open []*socket
	for _, f := range families {
		s, err := f.open(ctx, false)
		if err != nil {
			continue // a machine without the family
		}
		open = append(open, s)
		go func() {
			s.hear(ctx, answers)
			ended <- struct{}{}
		}()
	}
	defer func() {
		cancel()
		for _, s := range open {
			_ = s.conn.Close()
		}
		for range open {
			<-ended
		}
	}()
	return search(ctx, open, message, answers, visit)
}

func search(ctx context.Context, open []*socket, message []byte, answers <-chan Found, visit func(Found) bool) error {
	next := time.NewTimer(0)
	defer next.Stop()
	pause := time.Duration(0)
	seen := map[Found]bool{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
			if err := ask(open, message); err != nil && pause == 0 {
				return err
			}
			pause = min(max(2*pause, firstPause), longestPause)
			next.Reset(pause)
		case f := <-answers:
			if seen[f] {
				continue
			}
			seen[f] = true
			if visit(f) {
				return nil
			}
		}
	}
}

// ask asks on every network.
func ask(open []*socket, message []byte) error {
	all, err := links()
	if err != nil {
		return err
	}
	var failures []error
	sent := false
	for _, s := range open {
		for _, link := range all {
			if _, has := s.carries(link); !has {
				continue
			}
			if err := s.send(message, link.Index, s.multicast()); err != nil {
				failures = append(failures, fmt.Errorf("ask on %s: %w", link.Name, err))
				continue
			}
			sent = true
		}
	}
	if sent {
		return nil
	}
	if len(failures) == 0 {
		return ErrNoNetwork
	}
	return errors.Join(failures...)
}

func (s *socket) hear(ctx context.Context, answers chan<- Found) {
	buffer := make([]byte, 9000)
	for {
		n, _, _, err := s.receive(buffer)
		if err != nil {
			return
		}
		for _, f := range heard(buffer[:n]) {
			select {
			case answers <- f:
			case <-ctx.Done():
				return
			}
		}
	}
}
