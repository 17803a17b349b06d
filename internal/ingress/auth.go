package ingress

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/cloudless/cloudless/internal/ingress/http1"
)

// passwords checks passwords against their hashes. A check costs tens of milliseconds of a CPU by design, so outcomes are
// remembered, and only some checks run at a time.
type passwords struct {
	salt   [32]byte
	checks chan struct{}

	mu      sync.Mutex
	known   map[[32]byte]bool
	running map[[32]byte]chan struct{} // closed when the check has ended
	waiting map[string]int             // checks by route, those that run included
}

// mostChecks is how many checks of one route wait, so that a route that is attacked does not keep those of others.
const mostChecks = 8

var errBusy = errors.New("too many passwords are being checked")

// mostKnown is how many outcomes are remembered.
const mostKnown = 10_000

// nobody is a hash that no password has. Unknown users are compared with it, so that the answer does not come sooner.
var nobody = sync.OnceValue(func() string {
	hash, _ := bcrypt.GenerateFromPassword([]byte(rand.Text()), bcrypt.DefaultCost) // the text is short enough
	return string(hash)
})

func newPasswords() *passwords {
	p := &passwords{known: map[[32]byte]bool{}, running: map[[32]byte]chan struct{}{}, waiting: map[string]int{}, checks: make(chan struct{}, max(runtime.GOMAXPROCS(0)/2, 1))}
	_, _ = rand.Read(p.salt[:]) // never fails
	return p
}

// right reports whether a password belongs to a hash. It returns errBusy at once if the route has too many checks.
func (p *passwords) right(ctx context.Context, route, hash, password string) (bool, error) {
	h := sha256.New()
	h.Write(p.salt[:])
	h.Write([]byte(hash))
	h.Write([]byte{0})
	h.Write([]byte(password))
	key := [32]byte(h.Sum(nil))
	for {
		p.mu.Lock()
		right, known := p.known[key]
		ended := p.running[key]
		switch {
		case known:
			p.mu.Unlock()
			return right, nil
		case ended == nil && p.waiting[route] >= mostChecks:
			p.mu.Unlock()
			return false, errBusy
		case ended == nil:
			p.waiting[route]++
			ended = make(chan struct{})
			p.running[key] = ended
			p.mu.Unlock()
			return p.check(ctx, route, hash, password, key, ended)
		}
		p.mu.Unlock()
		select { // browsers send several requests at a time
		case <-ctx.Done():
			return false, ctx.Err()
		case <-ended:
		}
	}
}

func (p *passwords) check(ctx context.Context, route, hash, password string, key [32]byte, ended chan struct{}) (right bool, err error) {
	select {
	case <-ctx.Done():
		err = ctx.Err()
	case p.checks <- struct{}{}:
		right = bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) == nil
		<-p.checks
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	close(ended)
	delete(p.running, key)
	if p.waiting[route]--; p.waiting[route] <= 0 {
		delete(p.waiting, route)
	}
	if err == nil {
		p.remember(key, right)
	}
	return right, err
}

// remember keeps an outcome. The caller holds mu.
func (p *passwords) remember(key [32]byte, right bool) {
	if len(p.known) >= mostKnown {
		for old, was := range p.known { // any that was wrong, or else all
			if !was {
				delete(p.known, old)
			}
		}
		if len(p.known) >= mostKnown {
			clear(p.known)
		}
	}
	p.known[key] = right
}

// mostCheck is how long a request waits for its password to be checked.
const mostCheck = 10 * time.Second

// authenticated reports whether the client is one of the route's users, and answers it otherwise.
func (x *exchange) authenticated() bool {
	name, password, given := basic(http1.Get(x.fields, "authorization"))
	if given {
		hash, known := x.route.users[name]
		if !known {
			hash = nobody()
		}
		ctx, cancel := context.WithTimeout(x.e.ctx, mostCheck)
		defer cancel()
		right, err := x.e.auth.right(ctx, x.route.uid, hash, password)
		if errors.Is(err, errBusy) {
			x.refuse(http.StatusTooManyRequests, "Too many passwords of this route are being checked.", retryAfter)
			return false
		}
		if err != nil {
			x.refuse(http.StatusServiceUnavailable, "Too many passwords are being checked.", retryAfter)
			return false
		}
		if right && known {
			return true
		}
	}
	x.refuse(http.StatusUnauthorized, "A name and a password are needed.", http1.Field{Name: "WWW-Authenticate", Value: `Basic realm="` + x.name + `", charset="UTF-8"`})
	return false
}

// basic parses the field of basic authentication.
func basic(field string) (name, password string, ok bool) {
	scheme, text, found := strings.Cut(field, " ")
	if !found || !http1.Same(scheme, "basic") {
		return "", "", false
	}
	plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil {
		return "", "", false
	}
	return strings.Cut(string(plain), ":")
}
