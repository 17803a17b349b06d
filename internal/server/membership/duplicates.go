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

// LocateServer returns the address at which this server knows another one. If a server asks
// about itself, it gets an address only if a process with its identity answers elsewhere.
func (s *Membership) LocateServer(ctx context.Context, request *v1.LocateServerRequest) (*v1.LocateServerResponse, error) {
	uid, asker := request.GetUid(), core.Caller(ctx).ID.Name()
	if uid == s.UID && asker == s.UID && request.GetAddress() != s.advertised {
		s.noteDuplicate(uid, request.GetAddress())
		return &v1.LocateServerResponse{Address: s.advertised}, nil
	}
	address := s.conns.Address(uid)
	if asker != uid || address == request.GetAddress() || address == "" {
		return &v1.LocateServerResponse{Address: address}, nil
	}
	if _, err := s.Progress(ctx, uid); err != nil {
		return &v1.LocateServerResponse{}, nil // it has moved, and no process is left there
	}
	s.noteDuplicate(uid, request.GetAddress())
	return &v1.LocateServerResponse{Address: address}, nil
}

// noteDuplicate remembers that a duplicate of a server was refused.
func (s *Membership) noteDuplicate(uid, address string) {
	name := s.Store.Snapshot().Server(uid).GetMetadata().GetName()
	problem := fmt.Sprintf("a copy of the data folder of server %s was started at %s and turned away: remove the copy there with cloudless down --purge, and join it as a new server", name, address)
	if s.duplicates.Note(uid, problem, s.Now()) {
		s.Logger.Warn("refused a server that runs on a copied data folder", "server", name, "address", address)
	}
}

// CheckDuplicate returns an error if a server with the same identity runs elsewhere, or if
// another server knows that this one was removed. Before this server takes part, the answer
// of one other server is enough. Later, a majority of the answers must agree: if two
// processes with one identity take part, only one of them should end.
func (s *Membership) CheckDuplicate(ctx context.Context, takesPart bool) error {
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
	answered := 0
	elsewhere := map[string]int{}
	for range len(others) + len(before) {
		answer := <-answers
		if answer.removed {
			return ErrRemoved // one answer is enough, because a removal is final
		}
		if answer.known {
			answered++
		}
		if answer.address != "" && answer.address != s.advertised {
			elsewhere[answer.address]++
		}
	}
	for address, votes := range elsewhere {
		if !takesPart || 2*votes > answered {
			s.announce(ctx, others, address)
			return fmt.Errorf("%w of that of a server which runs at %s", ErrDuplicate, address)
		}
	}
	return nil
}

// whereabouts is the answer of another server about this one.
type whereabouts struct {
	known   bool // the server has answered
	removed bool
	address string
}

// whereAmI asks another server where it knows this one.
func (s *Membership) whereAmI(ctx context.Context, asked string) whereabouts {
	conn, err := s.conns.Ready(ctx, asked)
	if err != nil {
		return whereabouts{}
	}
	answer, err := v1.NewPeerServiceClient(conn).LocateServer(ctx, &v1.LocateServerRequest{Uid: s.UID, Address: s.advertised})
	if err != nil {
		return whereabouts{removed: core.HasReason(err, core.ReasonRemoved)}
	}
	return whereabouts{known: true, address: answer.GetAddress()}
}

// formerAddresses returns earlier addresses of this server. A duplicate of the only server
// can ask only there.
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

// whoIsAt asks the process that has this server's identity at an address, if there is one.
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

// announce tells the original server and all others that this one is a duplicate, also
// those that have not answered in time. Each of them may lead, and the leader reports the
// problems of the cluster.
func (s *Membership) announce(ctx context.Context, others []string, original string) {
	ctx, cancel := context.WithTimeout(ctx, announceTimeout)
	defer cancel()
	var all sync.WaitGroup
	tell := func(server string, ask func() whereabouts) {
		for answer := ask(); answer.address == "" || answer.address == s.advertised; answer = ask() {
			select {
			case <-time.After(announcePause):
			case <-ctx.Done():
				s.Logger.Warn("could not tell a server that this one runs on a copied data folder", "server", server)
				return
			}
		}
	}
	all.Go(func() { tell(original, func() whereabouts { return s.whoIsAt(ctx, original) }) })
	for _, uid := range others {
		all.Go(func() { tell(uid, func() whereabouts { return s.whereAmI(ctx, uid) }) })
	}
	all.Wait()
}

// otherServers returns the other servers in the state and in the Raft configuration.
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

// watchDuplicates ends with an error when this server turns out to be a duplicate, or to be
// removed. Two processes that start at the same time do not find each other at the start,
// and the servers that know of a removal may have been unreachable.
func (s *Membership) watchDuplicates(ctx context.Context) error {
	ticker := time.NewTicker(duplicateCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := s.CheckDuplicate(ctx, true); err != nil && ctx.Err() == nil {
			return err
		}
	}
}
