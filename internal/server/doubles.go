package server

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/peers"
	"github.com/cloudless/cloudless/internal/state"
)

// A data folder may have been copied, with the machine or without it. Then two
// processes have one identity, and each would undo what the other does. The one
// that was there first stays; the other one is turned away in words.

const (
	// doubleWords is how many times the one that was there must be heard before the
	// other one is turned away: one word may have been on its way from a process
	// that is dead.
	doubleWords = 2
	// doublePatience is how many of its intervals it has for that.
	doublePatience = 4
	// doubleLook is how often a server makes sure that it is the only one of itself.
	doubleLook = 10 * time.Second
	doubleTime = 2 * time.Second
	// doubleTelling is how long a copy tries to let all others know of it, and
	// doublePause how long it waits before it tries again.
	doubleTelling, doublePause = 5 * time.Second, 100 * time.Millisecond
	// doubleKept is how long it is told that a copy was turned away.
	doubleKept = 10 * time.Minute
)

// doubles remembers who was turned away.
type doubles struct {
	mu   sync.Mutex
	seen map[string]turnedAway
}

type turnedAway struct {
	sentence string
	at       time.Time
}

// note remembers a copy and reports whether it is news.
func (c *doubles) note(uid, sentence string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[string]turnedAway{}
	}
	before, known := c.seen[uid]
	c.seen[uid] = turnedAway{sentence: sentence, at: now}
	return !known || now.Sub(before.at) > doubleKept
}

// problems are those of the last minutes, for who wants to know what is wrong.
func (c *doubles) problems(now time.Time) (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid, one := range c.seen {
		if now.Sub(one.at) > doubleKept {
			delete(c.seen, uid)
			continue
		}
		all = append(all, one.sentence)
	}
	slices.Sort(all)
	return all
}

// admitInstance lets a node's agent in unless one that runs on another copy of
// its data folder is there and alive. An older one that says nothing any more
// has lost its machine: that is no copy but a restart.
func (s *agentService) admitInstance(ctx context.Context, node, instance, from string) error {
	heard := 0
	var patience <-chan time.Time
	for {
		there, _ := s.sessions.look(node)
		if instance == "" || there == nil || there.instance == "" || there.instance == instance {
			return nil
		}
		if patience == nil {
			timer := time.NewTimer(doublePatience * max(there.interval(), time.Second))
			defer timer.Stop()
			patience = timer.C
		}
		select {
		case <-there.nextWord():
			if heard++; heard >= doubleWords {
				return s.turnAway(ctx, node, from)
			}
		case <-there.ctx.Done():
			heard = 0
		case <-patience:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// turnAway refuses a copy and lets everybody know.
func (s *agentService) turnAway(ctx context.Context, node, from string) error {
	stored := s.Store.Snapshot().Node(node)
	name := stored.GetMetadata().GetName()
	sentence := fmt.Sprintf("a copy of the data folder of node %s runs on another machine (%s) and was turned away: stop it there, remove the copy with cloudless down --purge, and join with a new token", name, from)
	if s.doubles.note(node, sentence, s.Now()) {
		s.Logger.Warn("copy of a node turned away", "node", name, "from", from)
		_, err := s.Propose(ctx, func(_ *state.Snapshot, b *state.Batch) error {
			b.Create(s.Event(ctx, stored, "Copied", sentence))
			return nil
		})
		if err != nil {
			s.Logger.Warn("that a copy of a node was turned away could not be noted", "node", name, "error", err)
		}
	}
	return core.Refuse(codes.AlreadyExists, "this data folder is a copy of that of node %s, which runs elsewhere: remove this copy with cloudless down --purge and join with a new token, or stop the other one first if this machine is to take its place", name)
}

// origin is which machine an agent says that it runs on.
func origin(status *v1.NodeStatus) string {
	for _, link := range status.GetInterfaces() {
		for _, text := range link.GetAddresses() {
			if prefix, err := netip.ParsePrefix(text); err == nil && link.GetUp() && prefix.Addr().IsGlobalUnicast() {
				return fmt.Sprintf("%s at %s", status.GetInfo().GetHostname(), prefix.Addr())
			}
		}
	}
	return status.GetInfo().GetHostname()
}

// nextWord is closed when the agent says something.
func (s *session) nextWord() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.word == nil {
		s.word = make(chan struct{})
	}
	return s.word
}

// heard notes that the agent has said something, and how often it means to.
func (s *session) heard(beat *v1.Heartbeat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if every, err := time.ParseDuration(beat.GetInterval()); err == nil {
		s.every = every
	}
	if s.word != nil {
		close(s.word)
		s.word = nil
	}
}

func (s *session) interval() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.every
}

// LocateServer says where this server hears of another one. One that asks for
// itself is told only if somebody with its identity answers elsewhere.
func (s *peerService) LocateServer(ctx context.Context, request *v1.LocateServerRequest) (*v1.LocateServerResponse, error) {
	uid, asker := request.GetUid(), core.Caller(ctx).ID.Name()
	if uid == s.UID && asker == s.UID && request.GetAddress() != s.advertised {
		s.noteServerCopy(uid, request.GetAddress())
		return &v1.LocateServerResponse{Address: s.advertised}, nil
	}
	address := s.peers.Address(uid)
	if asker != uid || address == request.GetAddress() || address == "" {
		return &v1.LocateServerResponse{Address: address}, nil
	}
	if _, err := s.Progress(ctx, uid); err != nil {
		return &v1.LocateServerResponse{}, nil // it has moved, and nobody is left there
	}
	s.noteServerCopy(uid, request.GetAddress())
	return &v1.LocateServerResponse{Address: address}, nil
}

func (s *Server) noteServerCopy(uid, address string) {
	name := s.Store.Snapshot().Server(uid).GetMetadata().GetName()
	sentence := fmt.Sprintf("a copy of the data folder of server %s was started at %s and turned away: remove the copy there with cloudless down --purge, and join it as a new server", name, address)
	if s.doubles.note(uid, sentence, s.Now()) {
		s.Logger.Warn("copy of a server turned away", "server", name, "address", address)
	}
}

// RefuseCopy is an error if a server with this one's identity runs elsewhere, or
// if one of the others knows that this one was removed. It is asked before this
// one takes part in anything, when it is enough that one of the others has found
// it elsewhere, and now and then later, when most must say so: of two that both
// take part, not both should go.
func (s *Server) RefuseCopy(ctx context.Context, takesPart bool) error {
	asking, cancel := context.WithTimeout(ctx, doubleTime)
	defer cancel()
	others := s.otherServers()
	var before []string
	if !takesPart {
		before = s.formerAddresses()
	}
	answers := make(chan whereabouts, len(others)+len(before))
	for _, uid := range others {
		go func() { answers <- s.whereAmI(asking, uid) }() // ends with asking
	}
	for _, address := range before {
		go func() { answers <- s.whoIsAt(asking, address) }() // ends with asking
	}
	said := 0
	elsewhere := map[string]int{}
	for range len(others) + len(before) {
		answer := <-answers
		if answer.removed {
			return ErrRemoved // one word is enough: nobody is ever taken back
		}
		if answer.known {
			said++
		}
		if answer.address != "" && answer.address != s.advertised {
			elsewhere[answer.address]++
		}
	}
	for address, voices := range elsewhere {
		if !takesPart || 2*voices > said {
			s.tellAll(ctx, others, address)
			return fmt.Errorf("%w of that of a server which runs at %s", ErrCopy, address)
		}
	}
	return nil
}

// whereabouts is what another server says of this one; nothing is known if it
// does not answer.
type whereabouts struct {
	known, removed bool
	address        string
}

func (s *Server) whereAmI(ctx context.Context, asked string) whereabouts {
	conn, err := s.peers.Ready(ctx, asked)
	if err != nil {
		return whereabouts{}
	}
	answer, err := v1.NewPeerServiceClient(conn).LocateServer(ctx, &v1.LocateServerRequest{Uid: s.UID, Address: s.advertised})
	if err != nil {
		return whereabouts{removed: core.HasReason(err, core.ReasonRemoved)}
	}
	return whereabouts{known: true, address: answer.GetAddress()}
}

// formerAddresses are where this server was, if it is elsewhere now: a copy of
// the only server has nobody else to ask.
func (s *Server) formerAddresses() []string {
	all := []string{s.Store.Snapshot().Server(s.UID).GetSpec().GetAddress()}
	for _, one := range s.Consensus.Servers() {
		if one.ID == s.UID {
			all = append(all, one.Address)
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(address string) bool {
		_, port, err := net.SplitHostPort(address)
		return err != nil || port == "0" || address == s.advertised
	})
}

// whoIsAt asks whoever has this server's identity at an address.
func (s *Server) whoIsAt(ctx context.Context, address string) whereabouts {
	answer, err := s.askSelf(ctx, address)
	if err != nil {
		return whereabouts{}
	}
	return whereabouts{known: true, address: answer.GetAddress()}
}

func (s *Server) askSelf(ctx context.Context, address string) (*v1.LocateServerResponse, error) {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(peers.TLS(s.PeerConfig(), s.UID))))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return v1.NewPeerServiceClient(conn).LocateServer(ctx, &v1.LocateServerRequest{Uid: s.UID, Address: s.advertised})
}

// tellAll lets the one that was there first know that this one is a copy, and all
// others, of whom some may not have answered in time: any of them may lead, and is
// asked what is wrong with the cluster.
func (s *Server) tellAll(ctx context.Context, others []string, original string) {
	ctx, cancel := context.WithTimeout(ctx, doubleTelling)
	defer cancel()
	var telling sync.WaitGroup
	tell := func(who string, ask func() whereabouts) {
		for answer := ask(); answer.address == "" || answer.address == s.advertised; answer = ask() {
			select {
			case <-time.After(doublePause):
			case <-ctx.Done():
				s.Logger.Warn("a server could not be told that this one is a copy", "server", who)
				return
			}
		}
	}
	telling.Go(func() { tell(original, func() whereabouts { return s.whoIsAt(ctx, original) }) })
	for _, uid := range others {
		telling.Go(func() { tell(uid, func() whereabouts { return s.whereAmI(ctx, uid) }) })
	}
	telling.Wait()
}

// otherServers are those that the state or the log name.
func (s *Server) otherServers() []string {
	var all []string
	for one := range s.Store.Snapshot().Servers("") {
		all = append(all, one.GetMetadata().GetUid())
	}
	for _, one := range s.Consensus.Servers() {
		all = append(all, one.ID)
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(uid string) bool { return strings.EqualFold(uid, s.UID) })
}

// stayAlone ends with an error when it turns out that this server is a copy, or
// was removed: two that were started at the same time do not see each other
// before, and those who know of the removal may have been away.
func (s *Server) stayAlone(ctx context.Context) error {
	ticker := time.NewTicker(doubleLook)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := s.RefuseCopy(ctx, true); err != nil && ctx.Err() == nil {
			return err
		}
	}
}
