package membership

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/peers"
)

const (
	// duplicateCheck is how often a server makes sure that no other process has its
	// identity, and duplicateTimeout how long one such check may take.
	duplicateCheck   = 10 * time.Second
	duplicateTimeout = 2 * time.Second
	// announceTimeout is how long a duplicate tries to tell all other servers that it
	// is one, and announcePause how long it waits between two attempts.
	announceTimeout, announcePause = 5 * time.Second, 100 * time.Millisecond
)

// LocateServer says where this server hears of another one. One that asks for
// itself is told only if somebody with its identity answers elsewhere.
func (s *Membership) LocateServer(ctx context.Context, request *v1.LocateServerRequest) (*v1.LocateServerResponse, error) {
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

func (s *Membership) noteServerCopy(uid, address string) {
	name := s.Store.Snapshot().Server(uid).GetMetadata().GetName()
	sentence := fmt.Sprintf("a copy of the data folder of server %s was started at %s and turned away: remove the copy there with cloudless down --purge, and join it as a new server", name, address)
	if s.duplicates.Note(uid, sentence, s.Now()) {
		s.Logger.Warn("copy of a server turned away", "server", name, "address", address)
	}
}

// RefuseCopy is an error if a server with this one's identity runs elsewhere, or
// if one of the others knows that this one was removed. It is asked before this
// one takes part in anything, when it is enough that one of the others has found
// it elsewhere, and now and then later, when most must say so: of two that both
// take part, not both should go.
func (s *Membership) RefuseCopy(ctx context.Context, takesPart bool) error {
	asking, cancel := context.WithTimeout(ctx, duplicateTimeout)
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

func (s *Membership) whereAmI(ctx context.Context, asked string) whereabouts {
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
func (s *Membership) formerAddresses() []string {
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
func (s *Membership) whoIsAt(ctx context.Context, address string) whereabouts {
	answer, err := s.askSelf(ctx, address)
	if err != nil {
		return whereabouts{}
	}
	return whereabouts{known: true, address: answer.GetAddress()}
}

func (s *Membership) askSelf(ctx context.Context, address string) (*v1.LocateServerResponse, error) {
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
func (s *Membership) tellAll(ctx context.Context, others []string, original string) {
	ctx, cancel := context.WithTimeout(ctx, announceTimeout)
	defer cancel()
	var telling sync.WaitGroup
	tell := func(who string, ask func() whereabouts) {
		for answer := ask(); answer.address == "" || answer.address == s.advertised; answer = ask() {
			select {
			case <-time.After(announcePause):
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
func (s *Membership) otherServers() []string {
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
func (s *Membership) stayAlone(ctx context.Context) error {
	ticker := time.NewTicker(duplicateCheck)
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
