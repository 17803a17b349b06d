package peering

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/identity"
)

// Reach tries an address, because the errors of gRPC do not say in plain words what is wrong with it.
func Reach(ctx context.Context, address string, config *tls.Config) error {
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: config}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New("nothing listens there: check the address, and that the server runs")
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("nothing answers there: check the address, that its machine runs, and that no firewall is between: %w", err)
	case err != nil:
		return err
	}
	return conn.Close()
}

// ReachPatience is how long a server may take to prove which cluster it belongs to.
const ReachPatience = 2 * time.Second

// CheckServers returns an error if none of the node's servers answers, but a server of another cluster does: the node
// would never get ready.
func CheckServers(ctx context.Context, f *datadir.Folder) error {
	about, err := f.ReadMembership()
	if err != nil {
		return err
	}
	creds, err := identity.LoadCredentials(f.CredentialsPath())
	if err != nil {
		return err
	}
	stranger := ""
	for _, address := range NewServerList(about, nil).Addresses() {
		soon, cancel := context.WithTimeout(ctx, ReachPatience)
		err := Reach(soon, address, identity.ClientTLS(creds.Trust(), creds.Certificate))
		cancel()
		if err == nil {
			return nil
		}
		if _, another := errors.AsType[x509.UnknownAuthorityError](err); another {
			stranger = address
		}
	}
	if stranger == "" {
		return ctx.Err() // the servers may still come
	}
	return fmt.Errorf("the server at %s belongs to another cluster than this machine, which is node %s of cluster %s: start a server of that cluster there, or leave it with: cloudless down --purge --data-dir %s, and join the other one",
		stranger, about.Node, creds.Trust().Cluster(), f.Path())
}
