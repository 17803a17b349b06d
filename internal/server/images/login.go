package images

import (
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/state"
)

// registryLogin holds the credentials for a registry. It never becomes text.
type registryLogin struct{ host, username, password string }

func (l *registryLogin) user() string {
	if l == nil {
		return ""
	}
	return l.username
}

func (l *registryLogin) authenticator() authn.Authenticator {
	if l == nil {
		return authn.Anonymous
	}
	return &authn.Basic{Username: l.username, Password: l.password}
}

// PasswordContext binds a sealed password to its use.
func PasswordContext(loginUID string) string { return state.PasswordContext(loginUID) }

// loginFor returns the cluster's login to a registry; nil if there is none.
func (s *Images) loginFor(snap *state.Snapshot, host string) (*registryLogin, error) {
	login := snap.LoginByName(host)
	if login == nil {
		return nil, nil
	}
	uid := login.GetMetadata().GetUid()
	password, err := s.sealer.Unseal(snap.Password(uid).GetSealed(), PasswordContext(uid))
	if err != nil {
		return nil, err
	}
	return &registryLogin{host: host, username: login.GetSpec().GetUsername(), password: string(password)}, nil
}

// LoginOf returns the login that a node needs to pull the image of a revision.
func (s *Images) LoginOf(snap *state.Snapshot, revision *v1.Revision) *v1.RegistryLogin {
	host, _, found := strings.Cut(revision.GetSpec().GetImage(), "/")
	if !found || host == image.ClusterRegistry {
		return nil
	}
	login, err := s.loginFor(snap, host)
	if err != nil {
		s.Logger.Error("a login cannot be opened", "host", host, "error", err)
	}
	if login == nil {
		return nil
	}
	return &v1.RegistryLogin{Host: login.host, Username: login.username, Password: login.password}
}
