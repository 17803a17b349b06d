package identity

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	// callTimeout limits a call to a server.
	callTimeout = 10 * time.Second
	// The pauses between failed attempts to get a certificate.
	retryFirst = time.Second
	retryMax   = 30 * time.Second
	// look is how often the age of a certificate is looked at. A machine that was suspended wakes up later than its
	// timers know.
	look = time.Minute
	// maxTokens is how many tokens a replica has in memory, each for other recipients.
	maxTokens = 64
)

// replica is the socket of one replica, and what is served there.
type replica struct {
	svc    *Service
	uid    string
	id     string // its SPIFFE id
	ttl    time.Duration
	server *grpc.Server
	ctx    context.Context // ends with the socket
	stop   context.CancelFunc
	begin  sync.Once // starts rotate

	mu      sync.Mutex
	svid    *svid
	problem error         // why there is no newer one
	changed chan struct{} // closed when svid or problem change
	tokens  map[string]token
}

// svid is a certificate with its key.
type svid struct {
	chain []byte // DER, without the authority
	key   []byte // PKCS #8
	// issuer is the authority that signed.
	issuer []byte
	age
}

// token is a JWT-SVID.
type token struct {
	text string
	age
}

// age says how old something is. Only durations count: the clocks of a node and of the servers may differ.
type age struct {
	since time.Time
	ttl   time.Duration
}

func newAge(ttl time.Duration) age { return age{since: time.Now(), ttl: ttl} }

// passed is the longer one of what the monotonic clock and the wall clock say: the one stands still while the machine
// sleeps, and the other may be set.
func (a age) passed() time.Duration {
	now := time.Now()
	return max(now.Sub(a.since), now.Round(0).Sub(a.since.Round(0)))
}

func (a age) expired() bool { return a.passed() >= a.ttl }
func (a age) old() bool     { return a.passed() >= a.ttl/2 }

// serve opens the socket of a replica. The caller holds s.mu.
func (s *Service) serve(subject Subject, dir string) (*replica, error) {
	id, err := identity.NewID(s.Cluster, identity.KindWorkload, subject.Namespace, subject.Workload)
	if err != nil {
		return nil, err
	}
	// The folders above are closed to all others. A container that runs as any user reaches the socket by its mount.
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // whatever the umask is
		return nil, err
	}
	path := filepath.Join(dir, socketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o777); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	r := &replica{svc: s, uid: subject.UID, id: id.String(), ttl: subject.TTL, changed: make(chan struct{}), tokens: map[string]token{}}
	r.ctx, r.stop = context.WithCancel(s.ctx)
	r.server = grpc.NewServer(newLimits().options()...)
	workload.RegisterSpiffeWorkloadAPIServer(r.server, &endpoint{replica: r})
	s.work.Go(func() { _ = r.server.Serve(netutil.LimitListener(listener, maxConnections)) }) // ends with close
	return r, nil
}

// close ends all calls, forgets the keys, and closes the socket.
func (r *replica) close() {
	r.stop()
	r.server.Stop()
}

// current is the newest valid certificate, a channel that is closed when it changes, and why there is none or no newer
// one. The first call begins to get certificates.
func (r *replica) current() (*svid, <-chan struct{}, error) {
	r.begin.Do(func() {
		r.svc.mu.Lock()
		defer r.svc.mu.Unlock()
		if r.ctx.Err() == nil {
			r.svc.work.Go(r.rotate)
		}
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.svid != nil && r.svid.expired() {
		return nil, r.changed, r.problem
	}
	return r.svid, r.changed, r.problem
}

// rotate replaces the certificate after half of its life, and when another authority signs.
func (r *replica) rotate() {
	pause := retryFirst
	for r.ctx.Err() == nil {
		trusted, changed := r.svc.trusted()
		if wait := r.fresh(trusted); wait > 0 {
			r.await(changed, wait)
			continue
		}
		made, err := r.issue()
		if r.ctx.Err() != nil {
			return
		}
		r.note(made, err)
		if err == nil {
			pause = retryFirst
			continue
		}
		r.svc.Logger.Warn("no new certificate for the identity of a replica; trying again", "replica", r.uid, "error", err)
		_ = sleep.For(r.ctx, pause/2+rand.N(pause/2))
		pause = min(2*pause, retryMax, max(r.ttl/8, retryFirst))
	}
}

// fresh is how long the certificate need not be replaced, at most look.
func (r *replica) fresh(trusted [][]byte) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	signs := len(trusted) == 0 || r.svid != nil && bytes.Equal(r.svid.issuer, trusted[0])
	if r.svid == nil || r.svid.old() || !signs {
		return 0
	}
	return min(look, r.svid.ttl/2-r.svid.passed())
}

// await waits for a change, or a while.
func (r *replica) await(changed <-chan struct{}, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-r.ctx.Done():
	case <-changed:
	case <-timer.C:
	}
}

// note keeps a new certificate, or why there is none.
func (r *replica) note(made *svid, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.problem = err; err == nil {
		r.svid = made
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// issue makes a key and has it certified.
func (r *replica) issue() (*svid, error) {
	key, csr, err := identity.NewKeyAndCSR()
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.ctx, callTimeout)
	defer cancel()
	made := &svid{key: private, age: newAge(r.ttl)} // it is not younger than the request
	answer, err := r.svc.Client.IssueX509(ctx, &v1.IssueX509Request{ReplicaUid: r.uid, Csr: csr})
	if err != nil {
		return nil, err
	}
	chain := answer.GetCertificates()
	if len(chain) < 2 {
		return nil, fmt.Errorf("the server answered with %d certificates instead of the replica's and its authority's", len(chain))
	}
	made.chain, made.issuer = chain[0], chain[1] // the authority that signed belongs to the bundle
	r.svc.setAuthorities(answer.GetBundle(), false)
	r.agree(made.issuer)
	return made, nil
}

// agree believes a server that signs with another authority than the node expects: otherwise the replica would ask again
// and again, until the node hears of the rotation.
func (r *replica) agree(issuer []byte) {
	s := r.svc
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.IndexFunc(s.authorities, func(der []byte) bool { return bytes.Equal(der, issuer) })
	if at == 0 {
		return
	}
	next := slices.Clone(s.authorities)
	if at > 0 {
		next = slices.Delete(next, at, at+1)
	}
	s.authorities = slices.Insert(next, 0, issuer)
	close(s.changed)
	s.changed = make(chan struct{})
}

// jwt is a token for recipients, from memory if it is still young.
func (r *replica) jwt(ctx context.Context, audience []string) (string, error) {
	about := strings.Join(audience, "\x00")
	r.mu.Lock()
	have, known := r.tokens[about]
	r.mu.Unlock()
	if known && !have.old() {
		return have.text, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	made := token{age: newAge(r.ttl)}
	answer, err := r.svc.Client.IssueJwt(ctx, &v1.IssueJwtRequest{ReplicaUid: r.uid, Audience: audience})
	if err != nil && known && !have.expired() {
		return have.text, nil // better than none
	}
	if err != nil {
		return "", err
	}
	made.text = answer.GetToken()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.tokens) >= maxTokens {
		r.forgetToken()
	}
	r.tokens[about] = made
	return made.text, nil
}

// forgetToken drops the oldest token. The caller holds r.mu.
func (r *replica) forgetToken() {
	oldest, at := "", time.Time{}
	for about, one := range r.tokens {
		if oldest == "" || one.since.Before(at) {
			oldest, at = about, one.since
		}
	}
	delete(r.tokens, oldest)
}
