package server

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/jwtbundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/workloadkeys"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// withIdentity makes a workload ask for an identity.
func withIdentity(ttl string) func(*v1.Workload) {
	return func(w *v1.Workload) { w.Spec.Identity = &v1.WorkloadIdentity{Ttl: ttl} }
}

// signTokens runs the leader's loop of the keys until there is one.
func (c *cluster) signTokens() {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = (&workloadkeys.Loop{Proposer: c.Server, Cluster: c.ca.Trust().Cluster(), Sealer: c.sealer}).Run(ctx)
	}()
	c.until(func(snap *state.Snapshot) bool { return workloadkeys.Active(snap) != nil })
	cancel()
	<-ended
}

// replicaOf is a replica of a workload that was created.
func (c *cluster) replicaOf(w *v1.Workload) *v1.Replica {
	c.t.Helper()
	for r := range c.Store.Snapshot().ReplicasOf(w.GetMetadata().GetUid()) {
		return r
	}
	c.t.Fatalf("%s has no replica", w.GetMetadata().GetName())
	return nil
}

// A node gets certificates and tokens of the replicas that it runs, if they ask for an identity, and of no others.
func TestIdentityIsOnlyForReplicasOfTheNode(t *testing.T) {
	c := newCluster(t)
	c.signTokens()
	op := c.as(core.RoleOperator)
	n1 := c.work("n1", nil)
	web, plain := c.create(op, workload("web", withIdentity("10m"))), c.create(op, workload("plain"))
	other := c.join("n2")
	_, csr, err := identity.NewKeyAndCSR()
	must(t, err)
	issue := func(m *member, uid string) (*v1.IssueX509Response, error) {
		return v1.NewIdentityServiceClient(m.conn).IssueX509(c.ctx, &v1.IssueX509Request{ReplicaUid: uid, Csr: csr})
	}
	sign := func(m *member, uid string) (*v1.IssueJwtResponse, error) {
		return v1.NewIdentityServiceClient(m.conn).IssueJwt(c.ctx, &v1.IssueJwtRequest{ReplicaUid: uid, Audience: []string{"db"}})
	}
	uid := c.replicaOf(web).GetMetadata().GetUid()

	issued, err := issue(n1.member, uid)
	must(t, err)
	leaf, err := x509.ParseCertificate(issued.GetCertificates()[0])
	must(t, err)
	id, err := identity.FromCertificate(leaf)
	must(t, err)
	if id.Kind() != identity.KindWorkload || id.Namespace() != "default" || id.Name() != "web" {
		t.Errorf("the certificate is of %s", id)
	}
	if left := time.Until(leaf.NotAfter); left > 10*time.Minute || left < 9*time.Minute {
		t.Errorf("the certificate is valid for %s, want 10m", left)
	}
	if len(issued.GetBundle()) != 1 {
		t.Errorf("the bundle has %d authorities", len(issued.GetBundle()))
	}

	for what, c := range map[string]struct {
		by  *member
		uid string
		why string
	}{
		"a replica of another node":           {other, uid, "is not assigned to this node"},
		"a replica that does not exist":       {n1.member, "nope", "is not assigned to this node"},
		"a replica that asks for no identity": {n1.member, c.replicaOf(plain).GetMetadata().GetUid(), "asks for no identity"},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := issue(c.by, c.uid)
			wantCode(t, err, codes.PermissionDenied, c.why)
			_, err = sign(c.by, c.uid)
			wantCode(t, err, codes.PermissionDenied, c.why)
		})
	}
	_, err = v1.NewIdentityServiceClient(op.conn).IssueJwt(c.ctx, &v1.IssueJwtRequest{ReplicaUid: uid, Audience: []string{"db"}})
	wantCode(t, err, codes.PermissionDenied)

	// When the replica is gone, so is its identity.
	_, err = op.DeleteWorkload(c.ctx, &v1.DeleteWorkloadRequest{Name: "web"})
	must(t, err)
	c.until(func(snap *state.Snapshot) bool {
		r := snap.Replica(uid)
		return r == nil || r.GetStatus().GetPhase() == "stopped"
	})
	_, err = issue(n1.member, uid)
	wantCode(t, err, codes.PermissionDenied)
}

// Everyone may read the keys, without an identity, and verify a token of a workload with them. Reading them makes nobody
// a caller with an identity.
func TestEveryoneCanVerifyTokensOfWorkloads(t *testing.T) {
	c := newCluster(t)
	c.signTokens()
	n1 := c.work("n1", nil)
	web := c.create(c.as(core.RoleOperator), workload("web", withIdentity("")))
	issued, err := v1.NewIdentityServiceClient(n1.conn).IssueJwt(c.ctx, &v1.IssueJwtRequest{
		ReplicaUid: c.replicaOf(web).GetMetadata().GetUid(), Audience: []string{"db", "queue"},
	})
	must(t, err)
	domain, err := spiffeid.TrustDomainFromString(c.ca.Trust().Cluster())
	must(t, err)
	verify := func(keys []byte) {
		t.Helper()
		bundle, err := jwtbundle.Parse(domain, keys)
		must(t, err)
		found, err := jwtsvid.ParseAndValidate(issued.GetToken(), bundle, []string{"queue"})
		if err != nil || found.ID.Path() != "/workload/default/web" || !found.Expiry.Equal(issued.GetExpireTime().AsTime()) {
			t.Errorf("the token is of %v: %v", found, err)
		}
	}
	response, body := c.request(nil, http.MethodGet, "/.well-known/jwks.json", "")
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "application/json" || response.Header.Get("Cache-Control") == "" {
		t.Fatalf("answer %d, %v", response.StatusCode, response.Header)
	}
	verify([]byte(body))
	_, body = c.request(nil, http.MethodGet, "/v1/identity/keys", "")
	var message struct{ Jwks []byte }
	must(t, json.Unmarshal([]byte(body), &message))
	verify(message.Jwks)
	stranger := c.dial(nil, "")
	answer, err := v1.NewIdentityServiceClient(stranger.conn).GetWorkloadKeys(c.ctx, &v1.GetWorkloadKeysRequest{})
	must(t, err)
	verify(answer.GetJwks())
	_, err = stranger.ListWorkloads(c.ctx, &v1.ListWorkloadsRequest{})
	wantCode(t, err, codes.Unauthenticated)
	response, _ = c.request(nil, http.MethodPost, "/.well-known/jwks.json", "")
	if response.StatusCode != http.StatusUnauthorized && response.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("a POST is answered with %d", response.StatusCode)
	}
}
