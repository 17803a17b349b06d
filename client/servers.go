package client

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Servers calls the service for the servers of the cluster.
func (c *Client) Servers() cloudlessv1.ServerServiceClient {
	return cloudlessv1.NewServerServiceClient(c.conn)
}

// WithStale allows stale reads: the server answers from its own state, even without a leader, and at less cost.
func WithStale(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, headerConsistency, consistencyStale)
}

const (
	headerConsistency = "consistency"
	consistencyStale  = "stale"
)

// A client learns of new servers from answers: every call says which ones it knows, and a server that knows better
// answers with the whole list.
const (
	headerKnown   = "x-cloudless-known"
	headerServers = "x-cloudless-servers"
)

// Addresses are those of all servers that the client knows now, the connected one first.
func (c *Client) Addresses() []string { return c.link.all() }

// ResolverState lists addresses as gRPC resolves them.
func ResolverState(addresses []string) resolver.State {
	var state resolver.State
	for _, address := range addresses {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: address})
	}
	return state
}

func (l *link) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.addresses)
}

// connected moves the address that answers to the front, which is where pushes go, too.
func (l *link) connected(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current = address
	if i := slices.Index(l.addresses, address); i > 0 {
		l.addresses = slices.Insert(slices.Delete(slices.Clone(l.addresses), i, i+1), 0, address)
	}
}

// known is the list of known servers for a call.
func (l *link) known() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.addresses, ",")
}

const (
	// reasonNoLeader means that a server is cut off from the others, or was removed.
	reasonNoLeader = "NO_LEADER"
	// reasonUncertain means that a call may have changed something.
	reasonUncertain = "UNCERTAIN"
)

// NoLeader reports whether a server refused a call because it cannot reach the leader. Another server may.
func NoLeader(err error) bool { return hasReason(err, reasonNoLeader) }

// Uncertain reports whether a failed call may have changed something: read again before you repeat it.
func Uncertain(err error) bool { return hasReason(err, reasonUncertain) }

func hasReason(err error, reason string) bool {
	return slices.ContainsFunc(status.Convert(err).Details(), func(detail any) bool {
		info, ok := detail.(*errdetails.ErrorInfo)
		return ok && info.GetReason() == reason
	})
}

// moveOn leaves a server that can be reached but cannot reach the others, and reports whether there is another one.
func (l *link) moveOn() bool {
	l.mu.Lock()
	i := slices.Index(l.addresses, l.current)
	if i < 0 || len(l.addresses) < 2 {
		l.mu.Unlock()
		return false
	}
	left := l.current
	l.addresses, l.current = append(slices.Delete(slices.Clone(l.addresses), i, i+1), left), ""
	all := slices.Clone(l.addresses)
	l.mu.Unlock()
	l.resolver.UpdateState(ResolverState(all[:len(all)-1])) // gRPC keeps a connection whose address stays
	l.resolver.UpdateState(ResolverState(all))
	return true
}

// lead connects to the first of all, and to another one only if that cannot be reached.
func (l *link) lead(all []string) {
	l.resolver.UpdateState(ResolverState(all[:1])) // again, so that no other one stays
	l.resolver.UpdateState(ResolverState(all))
}

// learnFrom learns from the header of an answer.
func (l *link) learnFrom(header metadata.MD) {
	if addresses := header.Get(headerServers); len(addresses) == 1 {
		l.learn(strings.Split(addresses[0], ","))
	}
}

// learn adopts the servers' own list of addresses. The address that works now stays, even if it is not in the list: it
// may be the only one that is reachable from here.
func (l *link) learn(addresses []string) {
	l.mu.Lock()
	all := slices.Clone(addresses)
	if i := slices.Index(all, l.current); i >= 0 {
		all = slices.Delete(all, i, i+1)
	}
	if l.current != "" {
		all = slices.Insert(all, 0, l.current)
	}
	known := slices.Equal(all, l.addresses)
	l.addresses = all
	l.mu.Unlock()
	if !known {
		l.resolver.UpdateState(ResolverState(all))
	}
}
