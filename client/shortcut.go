package client

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
)

// Any server accepts any call, forwards what only the leader can answer, and names the leader in the answer. A client
// that sees this often opens a second connection, to the leader, and sends such calls there. The usual way always
// works: the shortcut is used only while it is connected and answers.
const headerLeader = "x-cloudless-leader"

const (
	// worthAShortcut is after how many forwarded calls a second connection pays off.
	worthAShortcut = 16
	// shortcutPatience is how long it may be silent before the next calls go the usual way.
	shortcutPatience = time.Second
)

// shortcut is a second connection, to the leader. If it breaks, gRPC finds another server for retries, as on the usual
// one.
type shortcut struct {
	conn *grpc.ClientConn
	link *link // of this connection

	mu        sync.Mutex
	passed    map[string]bool // methods that were forwarded, and so use the shortcut
	forwarded int             // how many were forwarded without a shortcut
	worth     int             // how many make it worthwhile
	to        string          // the leader's address, if the shortcut leads there
	asked     int             // unanswered calls on it
	waiting   time.Time       // since when it has been silent
}

func newShortcut(addresses []string) *shortcut {
	return &shortcut{link: &link{addresses: addresses}, passed: map[string]bool{}, worth: worthAShortcut}
}

// choose returns the connection for a call. The caller then reports the outcome to hear.
func (s *shortcut) choose(ctx context.Context, method string, usual *grpc.ClientConn) *grpc.ClientConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.to == "" || !s.passed[method] || wantsStale(ctx) {
		return usual
	}
	if s.conn.GetState() != connectivity.Ready {
		s.conn.Connect()
		return usual
	}
	now := time.Now()
	switch {
	case s.asked == 0:
		s.waiting = now
	case now.Sub(s.waiting) > shortcutPatience:
		return usual
	}
	s.asked++
	return s.conn
}

func wantsStale(ctx context.Context) bool {
	md, _ := metadata.FromOutgoingContext(ctx)
	return slices.Contains(md.Get(headerConsistency), consistencyStale)
}

// learnFrom learns from the answer to a call where the leader is, if it was forwarded.
func (s *shortcut) learnFrom(method string, by *grpc.ClientConn, header metadata.MD, err error, usual *link) {
	leader := ""
	for _, leader = range header.Get(headerLeader) { // the last value counts, after an election there are two
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if by == s.conn {
		s.asked--
		s.waiting = time.Now()
		if leader == s.to || hasReason(err, reasonNoLeader) { // it led to another server, or nowhere
			s.to, s.forwarded, s.worth = "", 0, 2*s.worth
			return
		}
	}
	if leader == "" || leader == s.to {
		return
	}
	s.passed[method] = true
	if s.forwarded++; s.to != "" || s.forwarded >= s.worth {
		s.aim(leader, usual.all())
	}
}

// aim connects the shortcut to a leader. The caller holds the lock.
func (s *shortcut) aim(leader string, all []string) {
	s.to, s.forwarded = leader, 0
	s.link.lead(append([]string{leader}, slices.DeleteFunc(all, func(a string) bool { return a == leader })...))
	s.conn.Connect()
}
