package core

import (
	"context"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/internal/identity"
)

// by is the context of a call of a user.
func by(ctx context.Context, name string) context.Context {
	id, err := identity.NewID("cluster", identity.KindUser, name)
	if err != nil {
		panic(err)
	}
	return WithPrincipal(ctx, Principal{ID: id})
}

func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns("plans", 3, 2, 4, 2)
		take := func(name string) func() {
			t.Helper()
			done, err := turns.Take(by(t.Context(), name))
			if err != nil {
				t.Fatal(err)
			}
			return done
		}
		begun := map[string]int{}
		wait := func(ctx context.Context, name string) {
			go func() {
				if done, err := turns.Take(by(ctx, name)); err == nil {
					begun[name]++
					t.Cleanup(done)
				}
			}()
			synctest.Wait()
		}
		first := take("ada")
		take("ada")
		wait(t.Context(), "ada") // one caller has two at most
		if begun["ada"] != 0 {
			t.Fatal("a third call of one caller runs")
		}
		bob := take("bob") // but does not keep others from running
		ctx, giveUp := context.WithCancel(t.Context())
		wait(ctx, "ada")
		if _, err := turns.Take(by(t.Context(), "ada")); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("one too many of one caller is answered with %v", err)
		}
		wait(t.Context(), "cleo")
		wait(t.Context(), "cleo")
		if _, err := turns.Take(by(t.Context(), "dan")); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("one too many in all is answered with %v", err)
		}
		giveUp() // the one behind it moves up
		synctest.Wait()
		bob()
		synctest.Wait()
		if begun["cleo"] != 1 || begun["ada"] != 0 {
			t.Errorf("after the call of another caller, %v have begun", begun)
		}
		first()
		synctest.Wait()
		if begun["ada"] != 1 || begun["cleo"] != 1 {
			t.Errorf("after the call of the same caller, %v have begun", begun)
		}
	})
}
