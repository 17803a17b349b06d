package enroll

import (
	"context"
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
