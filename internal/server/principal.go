package server

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/state"
)

// The roles a caller can have.
const (
	roleAdmin    = "admin"
	roleOperator = "operator"
	roleViewer   = "viewer"
	roleNode     = "node"
	roleServer   = "server"
)

// Principal is who is calling, once that has been proved.
type Principal struct {
	ID   identity.ID
	Role string
	// TokenUID is set when the proof was an API token.
	TokenUID string
	// Expires is when the proof ends, zero for certificates.
	Expires time.Time
}

var (
	errNoIdentity   = errors.New("this call needs an identity: send an API token as 'Authorization: Bearer …' or use a client certificate of this cluster")
	errUnknownToken = errors.New("the API token is not valid: it is unknown, revoked or has expired; " + newTokenWayOut(roleOperator))
)

// expiredToken is an API token whose time is over.
type expiredToken struct {
	name, role string
	at         time.Time
}

func (e *expiredToken) Error() string {
	return "API token " + e.name + " expired at " + e.at.UTC().Format(time.RFC3339) + ": " + newTokenWayOut(e.role)
}

// newTokenWayOut tells the bearer of a token that is of no use how to get another one.
func newTokenWayOut(role string) string {
	return "ask an admin for a new one, made with: cloudless token create --role " + role +
		"; then log in with it: cloudless login ADDRESS --token-file FILE"
}

var errRemovedServer = errors.New("this server was removed from the cluster: remove its data folder with cloudless down --purge, and join again with a new token")

// Reasons in the details of an error tell a server that it was removed, or that it
// is not a member.
const (
	reasonRemoved   = "REMOVED"
	reasonNotMember = "NOT_MEMBER"
)

// unauthenticated is the answer to a caller who could not be proved.
func unauthenticated(err error) error {
	if _, refused := errors.AsType[*refusal](err); refused {
		return err // it has a code of its own
	}
	if removed, ok := errors.AsType[*removedNode](err); ok {
		return withDetails(codes.Unauthenticated, err.Error(), api.NodeRemoved(removed.epoch))
	}
	_, notMember := errors.AsType[unknownServer](err)
	switch {
	case errors.Is(err, errRemovedServer):
		return withReasons(codes.Unauthenticated, err.Error(), reasonRemoved)
	case notMember:
		return withReasons(codes.Unauthenticated, err.Error(), reasonNotMember)
	}
	return status.Error(codes.Unauthenticated, err.Error())
}

type principalKey struct{}

func withPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// caller returns the principal that the interceptors proved.
func caller(ctx context.Context) Principal {
	p, _ := ctx.Value(principalKey{}).(Principal)
	return p
}

// authenticator proves identities against the replicated state.
type authenticator struct {
	cluster  string
	snapshot func() *state.Snapshot
	now      func() time.Time
}

// fromTLS proves a member of the cluster by its certificate, which the
// handshake has verified already. A member that is no longer in the state has
// no identity any more, however long its certificate lasts.
func (a *authenticator) fromTLS(info credentials.TLSInfo) (Principal, bool, error) {
	id, ok := identity.PeerID(info.State)
	if !ok {
		return Principal{}, false, nil
	}
	switch id.Kind() {
	case identity.KindNode:
		if err := provenNode(a.snapshot(), id.Name()); err != nil {
			return Principal{}, true, err
		}
		return Principal{ID: id, Role: roleNode}, true, nil
	case identity.KindServer:
		if a.snapshot().Revocation(id.Name()) != nil {
			return Principal{}, true, errRemovedServer
		}
		return Principal{ID: id, Role: roleServer}, true, nil
	default:
		return Principal{}, true, errors.New("certificates of kind " + string(id.Kind()) + " cannot call the API")
	}
}

// isMember reports whether the state has the bearer of a certificate.
func (a *authenticator) isMember(info credentials.TLSInfo) bool {
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
func (a *authenticator) requireMember(p Principal) error {
	if p.Role == roleServer && a.snapshot().Server(p.ID.Name()) == nil {
		return unknownServer(p.ID.Name())
	}
	return nil
}

// fromToken proves a user by an API token.
func (a *authenticator) fromToken(secret string) (Principal, error) {
	parsed, err := identity.ParseAPIToken(secret)
	if err != nil {
		return Principal{}, err
	}
	snap := a.snapshot()
	credential := snap.Credential(parsed.ID())
	if credential == nil || !parsed.Matches(credential.GetHash()) {
		return Principal{}, errUnknownToken
	}
	return a.ofToken(snap.Token(credential.GetTokenUid()))
}

// stillHolds reports whether a caller that was proved by a token, before its message
// was read, would be proved again. Everybody else is proved anew.
func (a *authenticator) stillHolds(p Principal) bool {
	if p.TokenUID == "" {
		return false
	}
	token := a.snapshot().Token(p.TokenUID)
	return token != nil && token.GetSpec().GetRole() == p.Role && a.now().Before(token.GetSpec().GetExpireTime().AsTime())
}

// ofToken is the bearer of a token, which may be nil.
func (a *authenticator) ofToken(token *v1.Token) (Principal, error) {
	if token == nil {
		return Principal{}, errUnknownToken
	}
	expires := token.GetSpec().GetExpireTime().AsTime()
	if !a.now().Before(expires) {
		return Principal{}, &expiredToken{name: token.GetMetadata().GetName(), role: token.GetSpec().GetRole(), at: expires}
	}
	id, err := identity.NewID(a.cluster, identity.KindUser, token.GetMetadata().GetName())
	if err != nil {
		return Principal{}, err
	}
	return Principal{ID: id, Role: token.GetSpec().GetRole(), TokenUID: token.GetMetadata().GetUid(), Expires: expires}, nil
}

// fromContext proves the caller of a gRPC call.
func (a *authenticator) fromContext(ctx context.Context) (Principal, error) {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return Principal{}, errNoIdentity
	}
	md, _ := metadata.FromIncomingContext(ctx)
	switch info := from.AuthInfo.(type) {
	case innerAuth:
		return principalFromMetadata(md)
	case credentials.TLSInfo:
		if p, ok, err := a.fromTLS(info); ok {
			if err == nil && p.Role == roleServer && len(md.Get(metadataID)) > 0 {
				return a.fromServer(p.ID, md)
			}
			return p, err
		}
	default:
		return Principal{}, errNoIdentity
	}
	header := md.Get("authorization")
	if len(header) != 1 {
		return Principal{}, errNoIdentity
	}
	secret, ok := bearer(header[0])
	if !ok {
		return Principal{}, errNoIdentity
	}
	return a.fromToken(secret)
}

// fromServer proves a caller whose call another server passes on. That server must
// be a member, and is believed only about who calls: what the caller may do, and
// until when, is what the state says here.
func (a *authenticator) fromServer(by identity.ID, md metadata.MD) (Principal, error) {
	snap := a.snapshot()
	if snap.Server(by.Name()) == nil {
		return Principal{}, unknownServer(by.Name())
	}
	named, err := principalFromMetadata(md)
	if err != nil {
		return Principal{}, err
	}
	uid := named.ID.Name()
	switch named.ID.Kind() {
	case identity.KindNode:
		if err := provenNode(snap, uid); err != nil {
			return Principal{}, err
		}
		return Principal{ID: named.ID, Role: roleNode}, nil
	case identity.KindServer:
		if snap.Revocation(uid) != nil {
			return Principal{}, errRemovedServer // the server that passes it on may not know yet
		}
		return Principal{ID: named.ID, Role: roleServer}, nil
	default:
		return a.ofToken(snap.Token(named.TokenUID))
	}
}

// provenNode refuses a node that is not in the state.
func provenNode(snap *state.Snapshot, uid string) error {
	switch {
	case snap.Node(uid) != nil:
		return nil
	case snap.Revocation(uid) != nil:
		return &removedNode{uid: uid, epoch: snap.Cluster().GetStatus().GetEpoch()}
	}
	return unknownNode(uid)
}

// removedNode is a node of which the state says that it was removed. That is
// final: a machine that joins again is another node.
type removedNode struct {
	uid   string
	epoch uint64
}

func (n *removedNode) Error() string {
	return "node " + n.uid + " was removed and is not a member of this cluster any more: join it again with a new token"
}

// unknownNode is a node whose certificate is good and that the state does not
// have. It may have joined after this state, if that was restored from a copy.
type unknownNode string

func (uid unknownNode) Error() string {
	return "node " + string(uid) + " is not a member of this cluster: join it again with a new token"
}

// unknownServer is a server whose certificate is good and that is no member.
type unknownServer string

func (uid unknownServer) Error() string {
	return "server " + string(uid) + " is not a member of this cluster, so it cannot pass calls on or change images: join it again with a new token"
}

// notKnown reports whether a caller was turned away only because the state of this server does not have it.
func notKnown(err error) bool {
	_, node := errors.AsType[unknownNode](err)
	_, server := errors.AsType[unknownServer](err)
	_, joinToken := errors.AsType[unknownJoinToken](err)
	return node || server || joinToken || errors.Is(err, errUnknownToken)
}

func bearer(header string) (string, bool) {
	scheme, secret, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return "", false
	}
	return strings.TrimSpace(secret), true
}

// The gateway proves its callers itself and hands the result on over a private
// in-memory connection, and a server does so when it passes a call on. These
// keys are believed from them only.
const (
	metadataID      = "x-cloudless-id"
	metadataRole    = "x-cloudless-role"
	metadataToken   = "x-cloudless-token-uid"
	metadataExpires = "x-cloudless-expires"
)

func (p Principal) metadata() metadata.MD {
	md := metadata.Pairs(metadataID, p.ID.String(), metadataRole, p.Role)
	if p.TokenUID != "" {
		md.Set(metadataToken, p.TokenUID)
		md.Set(metadataExpires, p.Expires.Format(time.RFC3339Nano))
	}
	return md
}

func principalFromMetadata(md metadata.MD) (Principal, error) {
	first := func(key string) string {
		if values := md.Get(key); len(values) == 1 {
			return values[0]
		}
		return ""
	}
	id, err := identity.ParseID(first(metadataID))
	if err != nil {
		return Principal{}, errNoIdentity
	}
	p := Principal{ID: id, Role: first(metadataRole), TokenUID: first(metadataToken)}
	if p.TokenUID != "" {
		if p.Expires, err = time.Parse(time.RFC3339Nano, first(metadataExpires)); err != nil {
			return Principal{}, errNoIdentity
		}
	}
	return p, nil
}
