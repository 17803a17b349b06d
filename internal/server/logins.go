package server

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/images"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// dockerHub is the only registry with several well-known hosts.
const dockerHub = "docker.io"

// registryHost returns the host as image names contain it. field is the field of the request that has it.
func registryHost(field, from string) (string, error) {
	host := strings.ToLower(strings.TrimSuffix(from, "/"))
	switch strings.TrimPrefix(host, "https://") {
	case dockerHub, "index.docker.io", "registry-1.docker.io", "index.docker.io/v1":
		return dockerHub, nil
	}
	name, err := image.ParseName(host + "/image")
	if err != nil || name.Registry != host || name.Repository != "image" {
		return "", &spec.Error{Violations: []spec.Violation{{
			Field: field, Message: "is not the host of a registry: write it as in the name of an image, such as ghcr.io or registry.example:5000",
		}}}
	}
	if name.Local() {
		return "", core.Refuse(codes.InvalidArgument, "the cluster pulls from its own registry without a login; other programs log in to it with an API token as the password")
	}
	return host, nil
}

func (s *imageService) SetLogin(ctx context.Context, request *v1.SetLoginRequest) (*v1.Login, error) {
	host, err := registryHost("host", request.GetHost())
	if err != nil {
		return nil, err
	}
	snap, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		old := snap.LoginByName(host)
		login := &v1.Login{
			ApiVersion: spec.APIVersion, Kind: "Login",
			Metadata: &v1.Metadata{Uid: state.NewUID(), Name: host},
		}
		if old != nil {
			login = proto.CloneOf(old)
		}
		login.Spec = &v1.LoginSpec{Host: host, Username: request.GetUsername()}
		uid := login.GetMetadata().GetUid()
		sealed, err := s.sealer.Seal([]byte(request.GetPassword()), images.PasswordContext(uid))
		if err != nil {
			return err
		}
		password := &statev1.Password{Metadata: &v1.Metadata{Uid: uid}, Sealed: sealed}
		if old == nil {
			b.Create(login)
			b.Create(password)
		} else {
			password.Metadata = proto.CloneOf(snap.Password(uid).GetMetadata())
			b.Update(login, old.GetMetadata().GetVersion())
			b.Update(password, password.GetMetadata().GetVersion())
		}
		b.Create(s.Event(ctx, login, "LoggedIn", "images of "+host+" are pulled as "+request.GetUsername()))
		return nil
	})
	if err != nil {
		return nil, err
	}
	return snap.LoginByName(host), nil
}

func newLogins(s *Server) *collection[*v1.Login] {
	c := newCollection[*v1.Login](s, state.KindLogin)
	c.missing = func(_ *state.Snapshot, _, host string) error {
		return core.Refuse(codes.NotFound, "the cluster has no login to %s", host)
	}
	c.remove = func(ctx context.Context, tx *transaction, login *v1.Login) *v1.Login {
		uid, host := login.GetMetadata().GetUid(), login.GetMetadata().GetName()
		tx.batch.Delete(state.KindLogin, uid)
		tx.batch.Delete(state.KindPassword, uid)
		tx.batch.Create(s.Event(ctx, login, "LoggedOut", "images of "+host+" are pulled without a login"))
		return login
	}
	return c
}

func (s *imageService) GetLogin(ctx context.Context, request *v1.GetLoginRequest) (*v1.Login, error) {
	host, err := registryHost("name", request.GetName())
	if err != nil {
		return nil, err
	}
	return s.logins.read(ctx, "", host)
}

func (s *imageService) ListLogins(ctx context.Context, request *v1.ListLoginsRequest) (*v1.ListLoginsResponse, error) {
	items, next, err := s.logins.list(ctx, request.GetPage(), selection[*v1.Login]{})
	if err != nil {
		return nil, err
	}
	return &v1.ListLoginsResponse{Items: items, Next: next}, nil
}

func (s *imageService) DeleteLogin(ctx context.Context, request *v1.DeleteLoginRequest) (*v1.DeleteLoginResponse, error) {
	host, err := registryHost("name", request.GetName())
	if err != nil {
		return nil, err
	}
	if _, err := s.logins.delete(ctx, "", host, 0); err != nil {
		return nil, err
	}
	return &v1.DeleteLoginResponse{}, nil
}
