package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cloudless/cloudless/internal/identity"
)

// CheckServer refuses a server in the folder of a node whose server is elsewhere: it would found a second cluster in
// the folder of the first.
func (f *Folder) CheckServer() error {
	if _, err := os.Stat(f.Path("server")); err == nil {
		return nil
	}
	creds, err := identity.LoadCredentials(f.CredentialsPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("data folder %s is that of a node of cluster %s: choose another --data-dir for the server, or remove the node's with: cloudless down --purge --data-dir %s",
		f.path, creds.Trust().Cluster(), f.path)
}

// CheckNode refuses a node alone in the folder of a server.
func (f *Folder) CheckNode() error {
	if _, err := os.Stat(f.Path("server")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("data folder %s holds the server of a cluster (%s): make this machine a node of that cluster with: cloudless up --data-dir %s; "+
		"for a node of another cluster choose another --data-dir", f.path, f.Cluster, f.path)
}

// BindCluster makes the folder one of the cluster, once and for all.
func (f *Folder) BindCluster(cluster string) error {
	if f.Cluster != "" && f.Cluster != cluster {
		return fmt.Errorf("data folder %s is of cluster %s, but what lies in it is of cluster %s: put back the files that belong together, or choose another --data-dir",
			f.path, f.Cluster, cluster)
	}
	return f.Update(func(r *Record) { r.Cluster = cluster })
}
