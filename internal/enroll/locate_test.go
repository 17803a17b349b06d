package enroll

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/discover"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/peering"
)

// A candidate that never answers does not keep others from being found.
func TestServerIsFoundDespiteASilentCandidate(t *testing.T) {
	t.Parallel()
	ca, err := identity.NewCA("home", time.Now())
	must.Succeed(t, err)
	mute, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer func() { _ = mute.Close() }()
	address := (&forgetfulServer{ca: ca}).listen(t)
	token := identity.NewJoinToken(ca.Trust().Fingerprint())

	searching, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := newCandidates(token)
	for _, one := range []discover.Found{
		{Address: "192.0.2.1:7700", Cluster: "another"},
		{Address: mute.Addr().String(), Cluster: token.CA().String()},
		{Address: address, Cluster: token.CA().String()},
	} {
		c.try(searching, one, cancel)
	}
	<-searching.Done()
	c.wait()
	if c.proven != address || len(c.strangers) != 1 {
		t.Errorf("found %q beside the strangers %v: %v", c.proven, c.strangers, c.failures)
	}
}

// If no server answers in time, the error says what to check.
func TestNoServerAnswersInTime(t *testing.T) {
	t.Parallel()
	ca, err := identity.NewCA("home", time.Now())
	must.Succeed(t, err)
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	err = peering.Reach(late, "192.0.2.1:7700", identity.JoinTLS(ca.Trust().Fingerprint())) // which is not even tried
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "nothing answers there: check the address") {
		t.Errorf("it ends with %v", err)
	}
}
