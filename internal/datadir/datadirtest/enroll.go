package datadirtest

import (
	"os"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/must"
)

// Enroll puts the credentials of a node of a cluster into a folder. They were issued at the given time, for a day.
func Enroll(t *testing.T, f *datadir.Folder, cluster string, issued time.Time) {
	t.Helper()
	ca, err := identity.NewCA(cluster, issued)
	must.Succeed(t, err)
	key, csr, err := identity.NewKeyAndCSR()
	must.Succeed(t, err)
	id, err := identity.NewID(cluster, identity.KindNode, "n1")
	must.Succeed(t, err)
	chain, err := ca.Issue(csr, id, identity.IssueOptions{TTL: 24 * time.Hour, Client: true}, issued)
	must.Succeed(t, err)
	creds, err := identity.NewCredentials(key, chain)
	must.Succeed(t, err)
	must.Succeed(t, os.MkdirAll(f.Path("agent"), 0o700))
	must.Succeed(t, creds.Save(f.CredentialsPath()))
}
