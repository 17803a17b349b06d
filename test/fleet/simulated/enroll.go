package simulated

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	// enrollers is how many nodes ask to join at the same time, over enrollLinks connections.
	enrollers   = 64
	enrollLinks = 4
	// enrollTries is enough for a leader change in the middle.
	enrollTries = 20
	enrollPause = 500 * time.Millisecond
)

// Enroll lets all nodes join the cluster, each with its own key. progress is called with the number of joined nodes. It
// may be nil.
func Enroll(ctx context.Context, o Options, progress func(done int)) (*Fleet, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	token, err := identity.ParseJoinToken(o.Token)
	if err != nil {
		return nil, err
	}
	f := &Fleet{options: o, handshakes: make(chan struct{}, o.Handshakes), nodes: make([]*Node, o.Nodes)}
	clients, hangUp, err := dialForEnrollment(o.Join, token)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	first, chain, err := f.enroll(ctx, clients[0], 0)
	if err != nil {
		return nil, err
	}
	f.authority = chain[1]
	if f.trust, err = identity.ParseTrust(f.authority); err != nil {
		return nil, err
	}
	if f.trust.Fingerprint() != token.CA() {
		return nil, errors.New("the server answered with a certificate of another cluster than the token's")
	}
	f.nodes[0] = first
	if err := f.enrollRest(ctx, clients, progress); err != nil {
		return nil, err
	}
	f.schedule()
	return f, nil
}

// dialForEnrollment opens connections of machines that have not joined yet.
func dialForEnrollment(addresses []string, token identity.JoinToken) (clients []v1.EnrollmentServiceClient, hangUp func(), err error) {
	var conns []*grpc.ClientConn
	hangUp = func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
	}
	for i := range enrollLinks {
		conn, err := grpc.NewClient("passthrough:///"+addresses[i%len(addresses)],
			grpc.WithTransportCredentials(credentials.NewTLS(identity.JoinTLS(token.CA()))))
		if err != nil {
			hangUp()
			return nil, nil, fmt.Errorf("connect to %s: %w", addresses[i%len(addresses)], err)
		}
		conns = append(conns, conn)
		clients = append(clients, v1.NewEnrollmentServiceClient(conn))
	}
	return clients, hangUp, nil
}

func (f *Fleet) enrollRest(ctx context.Context, clients []v1.EnrollmentServiceClient, progress func(int)) error {
	var done, next atomic.Int64
	done.Store(1)
	g, ctx := errgroup.WithContext(ctx)
	for w := range enrollers {
		g.Go(func() error {
			for {
				i := int(next.Add(1))
				if i >= len(f.nodes) {
					return nil
				}
				n, _, err := f.enroll(ctx, clients[w%len(clients)], i)
				if err != nil {
					return err
				}
				f.nodes[i] = n
				if progress != nil {
					progress(int(done.Add(1)))
				}
			}
		})
	}
	return g.Wait()
}

// enroll retries until it has an answer: a retry with the same key asks for the same node.
func (f *Fleet) enroll(ctx context.Context, client v1.EnrollmentServiceClient, i int) (*Node, [][]byte, error) {
	key, csr, err := identity.NewKeyAndCSR()
	if err != nil {
		return nil, nil, err
	}
	request := &v1.EnrollRequest{
		Token: f.options.Token, Csr: csr, Name: fmt.Sprintf("%s-%05d", f.options.Name, i), Labels: f.options.Labels(i),
	}
	for try := 1; ; try++ {
		answer, err := client.Enroll(ctx, request)
		if err == nil {
			chain := answer.GetCertificates()
			if len(chain) != 2 {
				return nil, nil, fmt.Errorf("node %d got %d certificates, not its own and the authority's", i, len(chain))
			}
			return newNode(f, i, key, chain[0], answer), chain, nil
		}
		if status.Code(err) != codes.Unavailable || try == enrollTries {
			return nil, nil, fmt.Errorf("let node %d join: %s", i, status.Convert(err).Message())
		}
		if sleep.For(ctx, enrollPause) != nil {
			return nil, nil, context.Cause(ctx)
		}
	}
}
