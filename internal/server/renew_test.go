package server

import (
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// shiftedClock is a clock that a test moves.
type shiftedClock struct {
	mu sync.Mutex
	by time.Duration
}

func (s *shiftedClock) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.by)
}

func (s *shiftedClock) move(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.by += by
}

// works reports whether a server accepts a secret.
func (c *cluster) works(secret string) error {
	c.t.Helper()
	_, err := c.dial(nil, secret).WhoAmI(c.ctx, &v1.WhoAmIRequest{})
	return err
}

func (c *cluster) renew(secret string) (*v1.CreateTokenResponse, error) {
	return v1.NewLoginServiceClient(c.dial(nil, secret).conn).RenewToken(c.ctx, &v1.RenewTokenRequest{})
}

func TestRenewedTokenHasANewSecretAndTheOldOneEndsSoon(t *testing.T) {
	clock := &shiftedClock{}
	c := newCluster(t, func(o *Options) { o.Clock = clock.now })
	made, err := c.CreateToken(c.ctx, &v1.CreateTokenRequest{Role: core.RoleViewer, Name: "ci", Ttl: "24h", Renewable: true, Purpose: "builds"})
	must(t, err)
	clock.move(16 * time.Hour)
	renewed, err := c.renew(made.GetSecret())
	must(t, err)
	if got, want := renewed.GetToken().GetSpec().GetExpireTime().AsTime(), clock.now().Add(24*time.Hour); got.Sub(want).Abs() > time.Minute {
		t.Errorf("the renewed token ends at %s, want %s", got, want)
	}
	if renewed.GetToken().GetSpec().GetPurpose() != "builds" || renewed.GetToken().GetMetadata().GetName() != "ci" {
		t.Errorf("the renewed token is %v", renewed.GetToken())
	}
	for _, secret := range []string{made.GetSecret(), renewed.GetSecret()} {
		must(t, c.works(secret))
	}
	clock.move(5*time.Minute + time.Second)
	wantCode(t, c.works(made.GetSecret()), codes.Unauthenticated)
	must(t, c.works(renewed.GetSecret()))
}

// A client that never got the answer asks again with the secret that it has.
func TestRenewalMayBeRepeatedWithTheOldSecret(t *testing.T) {
	c := newCluster(t)
	made, err := c.CreateToken(c.ctx, &v1.CreateTokenRequest{Role: core.RoleViewer, Renewable: true})
	must(t, err)
	lost, err := c.renew(made.GetSecret())
	must(t, err)
	got, err := c.renew(made.GetSecret())
	must(t, err)
	wantCode(t, c.works(lost.GetSecret()), codes.Unauthenticated)
	for _, secret := range []string{made.GetSecret(), got.GetSecret()} {
		must(t, c.works(secret))
	}
	if n := c.Store.Snapshot().Count(state.KindCredential); n != 2 {
		t.Errorf("the state has %d secrets of the token, want 2", n)
	}
}

func TestUseOfTheNewSecretEndsTheOldOne(t *testing.T) {
	c := newCluster(t)
	made, err := c.CreateToken(c.ctx, &v1.CreateTokenRequest{Role: core.RoleViewer, Renewable: true})
	must(t, err)
	renewed, err := c.renew(made.GetSecret())
	must(t, err)
	must(t, c.works(renewed.GetSecret()))
	must(t, c.tokenUses.Report(c.ctx))
	wantCode(t, c.works(made.GetSecret()), codes.Unauthenticated)
	must(t, c.works(renewed.GetSecret()))
}

func TestTokensThatAreNotRenewable(t *testing.T) {
	c := newCluster(t)
	plain := c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleViewer})
	_, err := c.renew(plain)
	wantCode(t, err, codes.FailedPrecondition, "not renewable", "--renewable")
	_, err = v1.NewLoginServiceClient(c.join("n1").user.conn).RenewToken(c.ctx, &v1.RenewTokenRequest{})
	wantCode(t, err, codes.FailedPrecondition, "certificate")
	_, err = c.as(core.RoleAdmin).CreateToken(c.ctx, &v1.CreateTokenRequest{Role: core.RoleNode, Renewable: true})
	wantCode(t, err, codes.InvalidArgument, "a machine joins once")
}

func TestLogoutRevokesEverySecretOfTheToken(t *testing.T) {
	c := newCluster(t)
	made, err := c.CreateToken(c.ctx, &v1.CreateTokenRequest{Role: core.RoleViewer, Renewable: true})
	must(t, err)
	renewed, err := c.renew(made.GetSecret())
	must(t, err)
	_, err = v1.NewLoginServiceClient(c.dial(nil, renewed.GetSecret()).conn).Logout(c.ctx, &v1.LogoutRequest{})
	must(t, err)
	for _, secret := range []string{made.GetSecret(), renewed.GetSecret()} {
		wantCode(t, c.works(secret), codes.Unauthenticated)
	}
	if n := c.Store.Snapshot().Count(state.KindCredential); n != 0 {
		t.Errorf("%d secrets are left", n)
	}
}

// The server keeps uses in memory; here they are written at once.
func TestTokenShowsItsLastUse(t *testing.T) {
	c := newCluster(t)
	must(t, c.works(c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleViewer, Name: "ci"})))
	c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleViewer, Name: "unused"})
	must(t, c.tokenUses.Report(c.ctx))
	admin := c.as(core.RoleAdmin)
	used, err := admin.GetToken(c.ctx, &v1.GetTokenRequest{Name: "ci"})
	must(t, err)
	if st := used.GetStatus(); time.Since(st.GetLastUseTime().AsTime()) > time.Minute || st.GetLastUseAddress() != "127.0.0.1" {
		t.Errorf("the used token shows %v", st)
	}
	unused, err := admin.GetToken(c.ctx, &v1.GetTokenRequest{Name: "unused"})
	must(t, err)
	if unused.GetStatus().GetLastUseTime() != nil {
		t.Errorf("the unused token shows %v", unused.GetStatus())
	}
}

// joinWith joins a machine with a token.
func (c *cluster) joinWith(secret string, ask *v1.EnrollRequest) (*v1.Node, error) {
	c.t.Helper()
	_, csr, err := identity.NewKeyAndCSR()
	must(c.t, err)
	ask.Token, ask.Csr = secret, csr
	answer, err := c.dial(nil, "").Enroll(c.ctx, ask)
	return answer.GetNode(), err
}

func TestJoinTokenFixesNameLabelsAndZone(t *testing.T) {
	c := newCluster(t)
	fixing := func() string {
		return c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode, NodeName: "box-7", NodeLabels: map[string]string{"rack": "b2"}, Zone: "berlin"})
	}
	token := fixing()
	for says, ask := range map[string]*v1.EnrollRequest{
		"box-7, and this one asks to be called mine": {Name: "mine", Named: true},
		"rack=c1 is not among them":                  {Name: "host", Labels: map[string]string{"rack": "c1"}},
		"disk=ssd is not among them":                 {Name: "host", Labels: map[string]string{"disk": "ssd"}},
		"zone=paris is not among them":               {Name: "host", Labels: map[string]string{"zone": "paris"}},
	} {
		_, err := c.joinWith(token, ask)
		wantCode(t, err, codes.PermissionDenied, says, "ask for another token")
	}
	node, err := c.joinWith(token, &v1.EnrollRequest{Name: "host", Labels: map[string]string{"rack": "b2"}})
	must(t, err)
	if labels := node.GetMetadata().GetLabels(); node.GetMetadata().GetName() != "box-7" || labels["rack"] != "b2" || labels["zone"] != "berlin" {
		t.Errorf("the machine joined as %v", node.GetMetadata())
	}
	_, err = c.joinWith(fixing(), &v1.EnrollRequest{Name: "host"})
	wantCode(t, err, codes.AlreadyExists, "box-7", "cloudless node rm box-7")
}

func TestImpossibleJoinTokensAreRefused(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	for says, ask := range map[string]*v1.CreateTokenRequest{
		"must be 1 if the token fixes the name": {Role: core.RoleNode, NodeName: "box", Uses: 2},
		"must be node or server":                {Role: core.RoleViewer, Zone: "berlin"},
		"only for tokens of role node":          {Role: core.RoleServer, NodeLabels: map[string]string{"rack": "b2"}},
	} {
		_, err := admin.CreateToken(c.ctx, ask)
		wantCode(t, err, codes.InvalidArgument, says)
	}
	if all := c.Store.Snapshot().Count(state.KindToken); all != 1 {
		t.Errorf("there are %d tokens besides the admin's", all-1)
	}
}
