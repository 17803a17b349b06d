package ingress

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
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

	mu    sync.Mutex
	known map[[32]byte]bool
}

// mostKnown is how many outcomes are remembered.
const mostKnown = 10_000

// nobody is a hash that no password has. Unknown users are compared with it, so that the answer does not come sooner.
var nobody = sync.OnceValue(func() string {
	hash, _ := bcrypt.GenerateFromPassword([]byte(rand.Text()), bcrypt.DefaultCost) // the text is short enough
	return string(hash)
})

func newPasswords() *passwords {
	p := &passwords{known: map[[32]byte]bool{}, checks: make(chan struct{}, max(runtime.GOMAXPROCS(0)/2, 1))}
	_, _ = rand.Read(p.salt[:]) // never fails
	return p
}

// right reports whether a password belongs to a hash.
func (p *passwords) right(ctx context.Context, hash, password string) (bool, error) {
	h := sha256.New()
	h.Write(p.salt[:])
	h.Write([]byte(hash))
	h.Write([]byte{0})
	h.Write([]byte(password))
	key := [32]byte(h.Sum(nil))
	p.mu.Lock()
	right, known := p.known[key]
	p.mu.Unlock()
	if known {
		return right, nil
	}
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case p.checks <- struct{}{}:
	}
	right = bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) == nil
	<-p.checks
	p.mu.Lock()
	defer p.mu.Unlock()
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
	return right, nil
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
		right, err := x.e.auth.right(ctx, hash, password)
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
