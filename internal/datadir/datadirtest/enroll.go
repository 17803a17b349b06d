package datadirtest

import (
	"os"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/identity"
)

// Enroll puts the credentials of a node of a cluster into a folder. They were issued at the given time, for a day.
func Enroll(t *testing.T, f *datadir.Folder, cluster string, issued time.Time) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ca, err := identity.NewCA(cluster, issued)
	must(err)
	key, csr, err := identity.NewKeyAndCSR()
	must(err)
	id, err := identity.NewID(cluster, identity.KindNode, "n1")
	must(err)
	chain, err := ca.Issue(csr, id, identity.IssueOptions{TTL: 24 * time.Hour, Client: true}, issued)
	must(err)
	creds, err := identity.NewCredentials(key, chain)
	must(err)
	must(os.MkdirAll(f.Path("agent"), 0o700))
	must(creds.Save(f.CredentialsPath()))
}
