package acme

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mholt/acmez/v3/acme"
)

// Failure is why there is no certificate.
type Failure struct {
	// Reason is a sentence that says what to do.
	Reason string
	// Wait is how long the authority asks to wait; 0 if it does not say.
	Wait time.Duration
	// Busy is whether the authority refuses everything for now, not only this host.
	Busy bool
	// NoAccount is whether the authority does not know the account any more.
	NoAccount bool
	Err       error
}

func (f *Failure) Error() string { return f.Reason }
func (f *Failure) Unwrap() error { return f.Err }

// maxDetail bounds what an authority says in a sentence.
const maxDetail = 300

// explain turns an error of an order into a Failure. The host is empty if the error concerns no single host.
func (a *Authority) explain(s *session, host string, err error) error {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f
	}
	f := &Failure{Err: err, Wait: s.retry.wait()}
	problem, refused := errors.AsType[acme.Problem](err)
	if refused {
		a.explainProblem(f, host, problem)
		return f
	}
	name := a.name()
	var unknown x509.UnknownAuthorityError
	var wrongName x509.HostnameError
	_, network := errors.AsType[net.Error](err)
	switch {
	case errors.As(err, &unknown), errors.As(err, &wrongName):
		f.Busy = true
		f.Reason = fmt.Sprintf("the ACME authority %s is not trusted: %s; if it is your own, set acme.ca to the PEM of the authority that signed its certificate", name, short(innermost(err).Error()))
	case errors.Is(err, context.Canceled):
		f.Reason = "the order was stopped"
	case s.retry.refused() == http.StatusTooManyRequests:
		f.Busy = true
		f.Reason = fmt.Sprintf("the ACME authority %s limits the rate of requests; the cluster tries again when it may", name)
	case s.retry.refused() >= 500:
		f.Busy = true
		f.Reason = fmt.Sprintf("the ACME authority %s has a failure of its own: %s; the cluster tries again", name, short(err.Error()))
	case strings.Contains(err.Error(), "provisioning client"), network && !strings.Contains(err.Error(), "record"):
		f.Busy = true
		f.Reason = fmt.Sprintf("the ACME authority %s cannot be reached: %s; the cluster tries again", name, short(innermost(err).Error()))
	case strings.Contains(err.Error(), "record"), strings.Contains(err.Error(), "zone"):
		f.Reason = fmt.Sprintf("the DNS record that proves %s could not be made: %s; check acme.dns of the configuration and the rights of its credentials", host, short(err.Error()))
	default:
		f.Reason = fmt.Sprintf("the ACME authority %s did not issue a certificate: %s", name, short(err.Error()))
	}
	return f
}

func (a *Authority) explainProblem(f *Failure, host string, p acme.Problem) {
	name, detail := a.name(), short(detailOf(p))
	switch p.Type {
	case acme.ProblemTypeRateLimited:
		// Most limits are for one host: other orders go on. The sentence is all that tells a limit of the whole account.
		f.Busy = host == "" || strings.Contains(detail, "new orders")
		f.Reason = fmt.Sprintf("the ACME authority %s limits the rate of orders: %s; the cluster tries again when it may", name, detail)
	case acme.ProblemTypeAccountDoesNotExist:
		f.NoAccount = true
		f.Reason = fmt.Sprintf("the ACME authority %s does not know the cluster's account any more; the cluster makes another one", name)
	case acme.ProblemTypeConnection, acme.ProblemTypeDNS, acme.ProblemTypeTLS:
		f.Reason = fmt.Sprintf("the ACME authority %s did not reach %s: %s; check that its DNS records lead to nodes that answer for routes, and that ports 80 and 443 are open there", name, host, detail)
	case acme.ProblemTypeUnauthorized, acme.ProblemTypeIncorrectResponse:
		f.Reason = fmt.Sprintf("the ACME authority %s got a wrong answer from %s: %s; check that all its DNS records lead to nodes of this cluster", name, host, detail)
	case acme.ProblemTypeCAA:
		f.Reason = fmt.Sprintf("a CAA record of %s forbids the ACME authority %s to issue: %s; change the record", host, name, detail)
	case acme.ProblemTypeRejectedIdentifier, acme.ProblemTypeUnsupportedIdentifier:
		f.Reason = fmt.Sprintf("the ACME authority %s issues no certificate for %s: %s; use tls mode cluster or own", name, host, detail)
	case acme.ProblemTypeInvalidContact, acme.ProblemTypeUnsupportedContact:
		f.Busy = true
		f.Reason = fmt.Sprintf("the ACME authority %s refuses the e-mail address of the cluster: %s; set acme.email", name, detail)
	case acme.ProblemTypeExternalAccountRequired:
		f.Busy = true
		f.Reason = fmt.Sprintf("the ACME authority %s wants an account that was made elsewhere, which the cluster cannot use; set acme.directory to another authority", name)
	case acme.ProblemTypeServerInternal:
		f.Busy = true
		f.Reason = fmt.Sprintf("the ACME authority %s has a failure of its own: %s; the cluster tries again", name, detail)
	default:
		f.Reason = fmt.Sprintf("the ACME authority %s refused: %s", name, detail)
	}
}

// name is how sentences call the authority.
func (a *Authority) name() string {
	if u, err := url.Parse(a.Directory); err == nil && u.Host != "" {
		return u.Host
	}
	return a.Directory
}

func detailOf(p acme.Problem) string {
	for _, sub := range p.Subproblems {
		if p.Detail == "" || p.Type == acme.ProblemTypeNamespace+"compound" {
			return sub.Detail
		}
	}
	if p.Detail == "" {
		return strings.TrimPrefix(p.Type, acme.ProblemTypeNamespace)
	}
	return p.Detail
}

func innermost(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

// short makes one line of limited length.
func short(text string) string {
	text = strings.TrimRight(strings.Join(strings.Fields(text), " "), ".")
	if len(text) > maxDetail {
		text = strings.ToValidUTF8(text[:maxDetail], "") + "..."
	}
	return text
}

// maxWait bounds what an authority may ask for.
const maxWait = 7 * 24 * time.Hour

// retryAfter remembers how long the last refusal asks to wait. The client of the library does not tell.
type retryAfter struct {
	next http.RoundTripper

	mu     sync.Mutex
	until  time.Time
	status int // of the last answer
}

func (r *retryAfter) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := r.next.RoundTrip(request)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status = 0; err == nil {
		r.status = answer.StatusCode
	}
	if err != nil || answer.StatusCode < 400 {
		return answer, err
	}
	r.until = time.Time{}
	text := answer.Header.Get("Retry-After")
	if seconds, err := strconv.Atoi(text); err == nil && seconds > 0 {
		r.until = time.Now().Add(min(time.Duration(seconds)*time.Second, maxWait))
	} else if at, err := http.ParseTime(text); err == nil {
		r.until = at
	}
	return answer, nil
}

// refused is the status of the last answer; 0 if there was none.
func (r *retryAfter) refused() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

func (r *retryAfter) wait() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return min(max(0, time.Until(r.until)), maxWait)
}
