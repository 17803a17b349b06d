package auth

import (
	"context"
	"errors"
	"net/netip"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
)

// AccessKey returns the access key with an id; nil if there is none or it has expired. Its signature is not checked yet, so
// nothing is permitted by this alone. Like an unknown token, an unknown key costs this server little.
func (a *Authenticator) AccessKey(ctx context.Context, id string) (found *v1.AccessKey, err error) {
	identify := func() (core.Principal, error) {
		if found = a.snapshot().AccessKeyByID(id); found == nil {
			return core.Principal{}, ErrUnknownToken
		}
		return a.OfKey(found)
	}
	_, err = identify()
	if found == nil {
		_, err = a.unknown.retry(ctx, presentedToken{token: "access key " + id}, identify)
	}
	if late, ok := errors.AsType[behindError](err); ok {
		return nil, refuseBehind(ctx, late)
	}
	if err != nil {
		return nil, nil
	}
	return found, nil
}

// OfKey returns the bearer of an access key, who may do what its role permits in its namespace. It does not limit the
// buckets: package buckets does.
func (a *Authenticator) OfKey(key *v1.AccessKey) (core.Principal, error) {
	m, s := key.GetMetadata(), key.GetSpec()
	var p core.Principal
	if s.GetExpireTime() != nil {
		if p.Expires = s.GetExpireTime().AsTime(); !a.core.Now().Before(p.Expires) {
			return core.Principal{}, &expiredToken{name: m.GetName(), role: s.GetRole(), at: p.Expires}
		}
	}
	id, err := identity.NewID(a.cluster, identity.KindUser, m.GetName())
	if err != nil {
		return core.Principal{}, err
	}
	p.ID, p.Role, p.TokenUID, p.Namespace = id, s.GetRole(), m.GetUid(), m.GetNamespace()
	p.Permissions = a.permissions.ofKey(a.snapshot(), key)
	return p, nil
}

// KeyUsed remembers that a request with a correct signature of an access key has come.
func (a *Authenticator) KeyUsed(key *v1.AccessKey) {
	a.Uses.add(core.Principal{TokenUID: key.GetMetadata().GetUid()}, netip.Addr{}, a.core.Now())
}
