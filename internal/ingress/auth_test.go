package ingress

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"

	"golang.org/x/crypto/bcrypt"

	"github.com/cloudless/cloudless/internal/must"
)

// Whoever guesses the passwords of one route must not keep the users of another from being checked.
func TestRoutesHaveOwnQueuesForPasswords(t *testing.T) {
	hash := string(must.Get(bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost))(t))
	synctest.Test(t, func(t *testing.T) {
		p := newPasswords()
		for range cap(p.checks) { // no check gets its turn
			p.checks <- struct{}{}
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for i := range mostChecks {
			go func() { _, _ = p.right(ctx, "attacked", hash, strconv.Itoa(i)) }() // ends with ctx
		}
		synctest.Wait()
		go func() { // a check that waits already costs nothing
			if _, err := p.right(ctx, "attacked", hash, "0"); errors.Is(err, errBusy) {
				t.Errorf("the same password is refused: %v", err)
			}
		}()
		if _, err := p.right(ctx, "attacked", hash, "another"); !errors.Is(err, errBusy) {
			t.Errorf("one more password of the route: %v", err)
		}
		type outcome struct {
			right bool
			err   error
		}
		other := make(chan outcome, 1)
		go func() {
			right, err := p.right(ctx, "other", hash, "secret")
			other <- outcome{right, err}
		}()
		synctest.Wait()
		for range cap(p.checks) {
			<-p.checks
		}
		if got := <-other; !got.right || got.err != nil {
			t.Errorf("a user of another route: %v", got)
		}
		synctest.Wait()
		if len(p.waiting)+len(p.running) != 0 {
			t.Errorf("still waiting: %v", p.waiting)
		}
	})
}
