package auth

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

var (
	errNoIdentity   = errors.New("this call needs an identity: send an API token as 'Authorization: Bearer …' or use a client certificate of this cluster")
	ErrUnknownToken = errors.New("the API token is not valid: it is unknown, revoked or has expired; " + newTokenWayOut(core.RoleOperator))
)

// expiredToken refuses an expired API token.
type expiredToken struct {
	name, role, user string
	at               time.Time
}

func (e *expiredToken) Error() string {
	if e.user != "" {
		return "the login of " + e.user + " ended at " + e.at.UTC().Format(time.RFC3339) + ": log in again with: cloudless login ADDRESS --oidc"
	}
	return "API token " + e.name + " expired at " + e.at.UTC().Format(time.RFC3339) + ": " + newTokenWayOut(e.role)
}

// newTokenWayOut tells the bearer of an invalid token how to get another one.
func newTokenWayOut(role string) string {
	return "ask an admin for a new one, made with: cloudless token create --role " + role +
		"; then log in with it: cloudless login ADDRESS --token-file FILE"
}

var errRemovedServer = errors.New("this server was removed from the cluster: remove its data folder with cloudless down --purge, and join again with a new token")

// unauthenticated is the answer to a caller that could not be authenticated.
func unauthenticated(err error) error {
	if _, refused := errors.AsType[*core.Refusal](err); refused {
		return err // it has its own code
	}
	if removed, ok := errors.AsType[*removedNode](err); ok {
		return core.WithDetails(codes.Unauthenticated, err.Error(), api.NodeRemoved(removed.epoch))
	}
	_, notMember := errors.AsType[unknownServer](err)
	switch {
	case errors.Is(err, errRemovedServer):
		return core.WithReasons(codes.Unauthenticated, err.Error(), core.ReasonRemoved)
	case notMember:
		return core.WithReasons(codes.Unauthenticated, err.Error(), core.ReasonNotMember)
	}
	return status.Error(codes.Unauthenticated, err.Error())
}

// Authenticator authenticates callers by the replicated state.
type Authenticator struct {
	core    *core.Core
	cluster string
	unknown *unknownCallers
	// Uses are the last uses of tokens at this server.
	Uses Uses
	// permissions are those of the tokens that called lately.
	permissions permissions
}

// NewAuthenticator returns the authenticator of a cluster. It calls catchUp before it refuses a caller that the state
// does not have; catchUp waits until this server has applied what the leader had committed. The context is that of the
// server.
func NewAuthenticator(ctx context.Context, core *core.Core, cluster string, catchUp func(context.Context) error) *Authenticator {
	return &Authenticator{core: core, cluster: cluster, unknown: newUnknownCallers(ctx, catchUp)}
}

func (a *Authenticator) snapshot() *state.Snapshot { return a.core.Store.Snapshot() }

// fromTLS authenticates a member by its certificate, which the handshake has verified already. A member that is no
// longer in the state has no identity, however long its certificate is valid.
func (a *Authenticator) fromTLS(info credentials.TLSInfo) (core.Principal, bool, error) {
	id, ok := identity.PeerID(info.State)
	if !ok {
		return core.Principal{}, false, nil
	}
	switch id.Kind() {
	case identity.KindNode:
		if err := checkNode(a.snapshot(), id.Name()); err != nil {
			return core.Principal{}, true, err
		}
		return core.Principal{ID: id, Role: core.RoleNode}, true, nil
	case identity.KindServer:
		if a.snapshot().Revocation(id.Name()) != nil {
			return core.Principal{}, true, errRemovedServer
		}
		return core.Principal{ID: id, Role: core.RoleServer}, true, nil
	default:
		return core.Principal{}, true, errors.New("certificates of kind " + string(id.Kind()) + " cannot call the API")
	}
}

// isMember reports whether the state has the bearer of a certificate.
func (a *Authenticator) isMember(info credentials.TLSInfo) bool {
	id, _ := identity.PeerID(info.State)
	snap := a.snapshot()
	switch id.Kind() {
	case identity.KindNode:
		return snap.Node(id.Name()) != nil
	case identity.KindServer:
		return snap.Server(id.Name()) != nil && snap.Revocation(id.Name()) == nil
	}
	return false
}

// requireMember refuses a server that the state does not have.
func (a *Authenticator) requireMember(p core.Principal) error {
	if p.Role == core.RoleServer && a.snapshot().Server(p.ID.Name()) == nil {
		return unknownServer(p.ID.Name())
	}
	return nil
}

// FromToken authenticates a user by an API token.
func (a *Authenticator) FromToken(secret string) (core.Principal, error) {
	parsed, err := identity.ParseAPIToken(secret)
	if err != nil {
		return core.Principal{}, err
	}
	snap := a.snapshot()
	credential := snap.Credential(parsed.ID())
	if credential == nil || !parsed.Matches(credential.GetHash()) {
		return core.Principal{}, ErrUnknownToken
	}
	return a.ofToken(snap.Token(credential.GetTokenUid()), parsed.ID())
}

// ofCaller authenticates the bearer of an API token that has called this server itself, and remembers the use.
func (a *Authenticator) ofCaller(by presentedToken) (core.Principal, error) {
	p, err := a.FromToken(by.token)
	if err == nil {
		a.Uses.add(p, by.address, a.core.Now())
	}
	return p, err
}

// stillValid returns a caller that was authenticated by a token, before its message was read, with what the token permits
// now. It is false if the token is not valid any more, and for all other callers, which are authenticated again.
func (a *Authenticator) stillValid(p core.Principal) (core.Principal, bool) {
	if p.TokenUID == "" {
		return p, false
	}
	now, err := a.again(p)
	return now, err == nil
}

// again returns the bearer of a token or an access key with what it permits now.
func (a *Authenticator) again(p core.Principal) (core.Principal, error) {
	snap := a.snapshot()
	if key := snap.AccessKey(p.TokenUID); key != nil {
		return a.OfKey(key)
	}
	return a.ofToken(snap.Token(p.TokenUID), p.SecretID)
}

// ofToken returns the bearer of a token, which may be nil, and of one of its secrets.
func (a *Authenticator) ofToken(token *v1.Token, secret string) (core.Principal, error) {
	if token == nil {
		return core.Principal{}, ErrUnknownToken
	}
	if st := token.GetStatus(); secret != "" && secret == st.GetOldSecretId() && !a.core.Now().Before(st.GetOldExpireTime().AsTime()) {
		return core.Principal{}, ErrUnknownToken // it was renewed
	}
	expires := token.GetSpec().GetExpireTime().AsTime()
	if !a.core.Now().Before(expires) {
		return core.Principal{}, &expiredToken{name: token.GetMetadata().GetName(), role: token.GetSpec().GetRole(), user: token.GetSpec().GetUser(), at: expires}
	}
	id, err := identity.NewID(a.cluster, identity.KindUser, token.GetMetadata().GetName())
	if err != nil {
		return core.Principal{}, err
	}
	about := token.GetSpec()
	return core.Principal{
		ID: id, Role: about.GetRole(), TokenUID: token.GetMetadata().GetUid(), SecretID: secret, Expires: expires,
		Namespace: about.GetNamespace(), User: about.GetUser(), Groups: about.GetGroups(),
		Permissions: a.permissions.ofToken(a.snapshot(), token),
	}, nil
}

// fromServer authenticates the caller of a call that another server relays. That server must be a member. It only names
// the caller: the state of this server decides what the caller may do, and until when.
func (a *Authenticator) fromServer(by identity.ID, md metadata.MD) (core.Principal, error) {
	snap := a.snapshot()
	if snap.Server(by.Name()) == nil {
		return core.Principal{}, unknownServer(by.Name())
	}
	named, err := principalFromMetadata(md)
	if err != nil {
		return core.Principal{}, err
	}
	uid := named.ID.Name()
	switch named.ID.Kind() {
	case identity.KindNode:
		if err := checkNode(snap, uid); err != nil {
			return core.Principal{}, err
		}
		return core.Principal{ID: named.ID, Role: core.RoleNode}, nil
	case identity.KindServer:
		if snap.Revocation(uid) != nil {
			return core.Principal{}, errRemovedServer // the relaying server may not know yet
		}
		return core.Principal{ID: named.ID, Role: core.RoleServer}, nil
	default:
		return a.again(named)
	}
}

// checkNode refuses a node that is not in the state.
func checkNode(snap *state.Snapshot, uid string) error {
	switch {
	case snap.Node(uid) != nil:
		return nil
	case snap.Revocation(uid) != nil:
		return &removedNode{uid: uid, epoch: snap.Cluster().GetStatus().GetEpoch()}
	}
	return unknownNode(uid)
}

// removedNode refuses a node that the state lists as removed. That is final: a machine that joins again is another
// node.
type removedNode struct {
	uid   string
	epoch uint64
}

func (n *removedNode) Error() string {
	return "node " + n.uid + " was removed and is not a member of this cluster any more: join it again with a new token"
}

// unknownNode refuses a node with a valid certificate that the state does not have. It may have joined after this
// state, if that was restored from a copy.
type unknownNode string

func (uid unknownNode) Error() string {
	return "node " + string(uid) + " is not a member of this cluster: join it again with a new token"
}

// unknownServer refuses a server with a valid certificate that is no member.
type unknownServer string

func (uid unknownServer) Error() string {
	return "server " + string(uid) + " is not a member of this cluster, so it cannot pass calls on or change images: join it again with a new token"
}

func bearer(header string) (string, bool) {
	scheme, secret, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return "", false
	}
	return strings.TrimSpace(secret), true
}
