package membership

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/atomicfile"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/state"
)

// A server needs its certificate to connect to the others, and the connections to get the
// state. So it cannot read the authority from the state when it starts. It keeps a copy on
// disk, which is sealed like the one in the state.

// KeepAuthority writes a copy of the authority for the next start.
func KeepAuthority(path string, authority *statev1.Authority) error {
	data, err := proto.Marshal(authority)
	if err != nil {
		return fmt.Errorf("encode the authority: %w", err)
	}
	if have, err := os.ReadFile(path); err == nil && string(have) == string(data) {
		return nil
	}
	if err := atomicfile.Replace(path, data); err != nil {
		return fmt.Errorf("keep the authority: %w", err)
	}
	return nil
}

// OpenAuthority reads what KeepAuthority wrote; fs.ErrNotExist if there is none.
func OpenAuthority(path string, sealer *identity.Sealer) (*identity.CA, error) {
	authority, err := readAuthority(path)
	if err != nil {
		return nil, err
	}
	return openAuthority(authority, sealer)
}

func readAuthority(path string) (*statev1.Authority, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the authority: %w", err)
	}
	authority := &statev1.Authority{}
	if err := proto.Unmarshal(data, authority); err != nil || len(authority.GetCertificate()) == 0 {
		return nil, errors.New(path + " is damaged: restore it from a backup, or let this server join again in another data folder")
	}
	return authority, nil
}

// OpenKeys opens the key-encryption key and the copy of the authority of a server that has one. A server whose file with
// the key is missing, or holds another key, must not start: with a new key it could read nothing that is sealed.
func OpenKeys(keyPath, authorityPath string) (*identity.Sealer, *identity.CA, error) {
	authority, err := readAuthority(authorityPath)
	if err != nil {
		return nil, nil, err
	}
	const wayOut = "restore the file from a backup of this server, or copy it from another server of the cluster (it is server/kek.json in its data folder, mode 0600); " +
		"if other servers run, this one can also join again: cloudless down --purge, and cloudless join ADDRESS --role server with a new token"
	sealer, err := identity.OpenSealer(keyPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("the key-encryption key %s is missing, and without it this server can open nothing that is sealed: %s", keyPath, wayOut)
	}
	if err != nil {
		return nil, nil, err
	}
	ca, err := openAuthority(authority, sealer)
	if errors.Is(err, identity.ErrUnknownKey) {
		return nil, nil, fmt.Errorf("%s holds the key-encryption key %s of another cluster or of an earlier time, but this server needs %s: %s",
			keyPath, strings.Join(sealer.KeyIDs(), " and "), identity.SealedBy(authority.GetSealedKey()), wayOut)
	}
	return sealer, ca, err
}

func openAuthority(authority *statev1.Authority, sealer *identity.Sealer) (*identity.CA, error) {
	all, err := unsealAuthority(authority, sealer)
	if err != nil {
		return nil, err
	}
	return identity.OpenCA(all)
}

func unsealAuthority(authority *statev1.Authority, sealer *identity.Sealer) (identity.Authorities, error) {
	key, err := sealer.Unseal(authority.GetSealedKey(), state.AuthorityKeyContext(authority.GetMetadata().GetUid()))
	if err != nil {
		return identity.Authorities{}, fmt.Errorf("open the cluster's CA key: %w", err)
	}
	return identity.Authorities{
		Active: authority.GetCertificate(), Key: key, Next: authority.GetNextCertificate(), Previous: authority.GetPreviousCertificate(),
		Endorsements: authority.GetEndorsements(),
	}, nil
}
