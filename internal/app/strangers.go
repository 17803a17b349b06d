package app

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/identity"
)

// strangerPatience is how long each server may take to say whose it is.
const strangerPatience = 2 * time.Second

// notAmongStrangers refuses to begin where another cluster is in the place of
// this machine's, if a person waits for it: nothing would ever get ready. Whom
// nobody waits for goes on trying, because what runs here needs no server.
func (f *folder) notAmongStrangers(ctx context.Context, process local.Process) error {
	if !process.Attended {
		return nil
	}
	about, err := f.readMembership()
	if err != nil {
		return err
	}
	creds, err := identity.LoadCredentials(f.credentialsPath())
	if err != nil {
		return err
	}
	stranger := ""
	for _, address := range newServerList(about, nil).addresses() {
		soon, cancel := context.WithTimeout(ctx, strangerPatience)
		err := reach(soon, address, identity.ClientTLS(creds.Trust(), creds.Certificate))
		cancel()
		if err == nil {
			return nil
		}
		if _, another := errors.AsType[x509.UnknownAuthorityError](err); another {
			stranger = address
		}
	}
	if stranger == "" {
		return ctx.Err() // they may yet come
	}
	return fmt.Errorf("the server at %s belongs to another cluster than this machine, which is node %s of cluster %s: start a server of that cluster there, or leave it with: cloudless down --purge --data-dir %s, and join the other one",
		stranger, about.Node, creds.Trust().Cluster(), f.path)
}
