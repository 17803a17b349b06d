package enroll

import (
	"context"
	"crypto/tls"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/peering"
)

// MemberPatience is how long a server may take to say whether it knows a member.
const MemberPatience = 3 * time.Second

// expelled reports whether the cluster says that it no longer knows this member. The first server that answers
// decides. A cluster that does not answer is no reason to leave it.
func expelled(ctx context.Context, servers []string, creds *identity.Credentials) bool {
	for _, address := range servers {
		soon, cancel := context.WithTimeout(ctx, MemberPatience)
		err := CheckMember(soon, address, creds)
		cancel()
		switch status.Code(err) {
		case codes.OK:
			return false
		case codes.Unauthenticated:
			return true
		}
	}
	return false
}

// CheckMember asks the server at an address whether it knows this member.
func CheckMember(ctx context.Context, address string, creds *identity.Credentials) error {
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(identity.ClientTLS(creds.Trust(), creds.Certificate))))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = v1.NewClusterServiceClient(conn).WhoAmI(ctx, &v1.WhoAmIRequest{})
	return err
}

// serversToAsk are the servers of the cluster that this machine has joined: first the one at address, then all that
// the machine knows.
func serversToAsk(f *datadir.Folder, address string) []string {
	var all []string
	if address != "" {
		all = append(all, address)
	}
	about, err := f.ReadMembership()
	if err != nil {
		return all
	}
	return append(all, peering.NewServerList(about, nil).Addresses()...)
}

// ofOtherCluster reports whether a token is for another cluster than a trust. A token that names an authority which the
// trust does not have may be of a later time: then a server of the cluster tells, which proves itself by the token.
func ofOtherCluster(ctx context.Context, servers []string, token identity.JoinToken, trust *identity.Trust) bool {
	if trust.Has(token.CA()) {
		return false
	}
	now := provenTrust(ctx, servers, token)
	return now == nil || now.Cluster() != trust.Cluster()
}

// missed reports whether the cluster no longer trusts the authority that a member's certificate is from.
func missed(ctx context.Context, servers []string, token identity.JoinToken, creds *identity.Credentials) bool {
	if creds.Issuer() == token.CA() {
		return false
	}
	now := provenTrust(ctx, servers, token)
	return now != nil && !now.Has(creds.Issuer())
}

// provenTrust is what the servers of the token's cluster trust, as the first one shows that proves itself; nil if none
// does.
func provenTrust(ctx context.Context, servers []string, token identity.JoinToken) *identity.Trust {
	ctx, cancel := context.WithTimeout(ctx, MemberPatience)
	defer cancel()
	for _, address := range servers {
		conn, err := (&tls.Dialer{Config: identity.JoinTLS(token.CA())}).DialContext(ctx, "tcp", address)
		if err != nil {
			continue
		}
		state := conn.(*tls.Conn).ConnectionState()
		_ = conn.Close()
		if trust, err := identity.TrustByFingerprint(state.PeerCertificates, token.CA()); err == nil {
			return trust
		}
	}
	return nil
}
