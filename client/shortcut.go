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

// Any server takes any call, passes on what only the leader can answer, and says in the answer where the leader is. A
// client that has heard that often connects to the leader too, and makes such calls there. It is never wrong to go
// the usual way: the shortcut is taken only while it is there and answers.
const headerLeader = "x-cloudless-leader"

const (
	// worthAShortcut is how many calls are passed on before a connection for them costs less.
	worthAShortcut = 16
	// shortcutPatience is how long nothing may be heard on it before the next calls go the usual way.
	shortcutPatience = time.Second
)

// shortcut is a second connection, to the server that leads. Should it break, gRPC finds another server for what is
// repeated on it, as it does on the usual one.
type shortcut struct {
	conn *grpc.ClientConn
	link *link // of this connection

	mu      sync.Mutex
	passed  map[string]bool // the methods that were passed on, which are those to call by it
	heard   int             // how often that was without a shortcut
	worth   int             // how often it must be
	to      string          // where the leader is, if the shortcut leads there
	asked   int             // calls on it that are not answered
	waiting time.Time       // since when nothing was heard of them
}

func newShortcut(addresses []string) *shortcut {
	return &shortcut{link: &link{addresses: addresses}, passed: map[string]bool{}, worth: worthAShortcut}
}

// choose returns the connection for a call; what becomes of it is to be heard.
func (s *shortcut) choose(ctx context.Context, method string, usual *grpc.ClientConn) *grpc.ClientConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.to == "" || !s.passed[method] || staleWished(ctx) {
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

func staleWished(ctx context.Context) bool {
	md, _ := metadata.FromOutgoingContext(ctx)
	return slices.Contains(md.Get(headerConsistency), consistencyStale)
}

// hear learns from the answer to a call where the leader is, if it was passed on.
func (s *shortcut) hear(method string, by *grpc.ClientConn, header metadata.MD, err error, usual *link) {
	leader := ""
	for _, leader = range header.Get(headerLeader) { // the last word counts, after an election there are two
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if by == s.conn {
		s.asked--
		s.waiting = time.Now()
		if leader == s.to || hasReason(err, reasonNoLeader) { // it has led to another server, or to nowhere
			s.to, s.heard, s.worth = "", 0, 2*s.worth
			return
		}
	}
	if leader == "" || leader == s.to {
		return
	}
	s.passed[method] = true
	if s.heard++; s.to != "" || s.heard >= s.worth {
		s.aim(leader, usual.all())
	}
}

// aim leads the shortcut to a leader. It is called with the lock held.
func (s *shortcut) aim(leader string, all []string) {
	s.to, s.heard = leader, 0
	s.link.lead(append([]string{leader}, slices.DeleteFunc(all, func(a string) bool { return a == leader })...))
	s.conn.Connect()
}
