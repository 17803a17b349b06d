package membership

import (
	"errors"
	"fmt"
	"os"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/atomicfile"
	"github.com/cloudless/cloudless/internal/identity"
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
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the authority: %w", err)
	}
	authority := &statev1.Authority{}
	if err := proto.Unmarshal(data, authority); err != nil || len(authority.GetCertificate()) == 0 {
		return nil, errors.New(path + " is damaged: restore it from a backup, or let this server join again in another data folder")
	}
	return openAuthority(authority, sealer)
}

func openAuthority(authority *statev1.Authority, sealer *identity.Sealer) (*identity.CA, error) {
	key, err := sealer.Unseal(authority.GetSealedKey(), sealContext(authority.GetMetadata().GetUid()))
	if err != nil {
		return nil, fmt.Errorf("open the cluster's CA key: %w", err)
	}
	return identity.LoadCA(authority.GetCertificate(), key)
}
