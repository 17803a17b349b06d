package chaos

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// users are all who depend on the availability of what runs: the callers of the shop, its operator, and whoever counts
// on the singleton.
type users struct {
	lab      *lab
	load     *load
	operator *operator
	census   *census
	watching sync.WaitGroup
	stop     context.CancelFunc
	censored error
}

// newUsers runs the shop and the singleton and watches both from now on.
func newUsers(t *testing.T, l *lab) *users {
	u := &users{lab: l, load: &load{lab: l}}
	var err error
	if u.census, err = newCensus(l); err != nil {
		t.Fatal(err)
	}
	l.census = u.census
	if err := l.runLedger(t.Context()); err != nil {
		t.Fatal(err)
	}
	if u.operator, err = l.open(t.Context(), *seed); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	u.stop = stop
	t.Cleanup(stop)
	u.watching.Go(func() { u.censored = u.census.run(ctx) })
	u.watching.Go(func() { u.load.run(ctx) })
	return u
}

// bear lets the operator work while something happens.
func (u *users) bear(ctx context.Context, what func(context.Context) error) error {
	during, end := context.WithCancel(ctx)
	var working sync.WaitGroup
	var worked error
	working.Go(func() { worked = u.operator.work(during) })
	harm := what(ctx)
	end()
	working.Wait()
	return errors.Join(harm, worked)
}

// judge ends the load and says what the users suffered.
func (u *users) judge(t *testing.T) {
	u.stop()
	u.watching.Wait()
	if u.censored != nil {
		t.Error(u.censored)
	}
	cost := count(u.load.requests, shopLeast, u.lab.told.faults)
	for _, one := range cost.serving {
		u.lab.told.note("%s served from %.3fs to %.3fs", one.what, one.begin.Seconds(), one.end.Seconds())
	}
	for _, complaints := range [][]string{cost.complaints(), u.operator.complaints(), u.lab.singletonComplaints(u.census)} {
		for _, complaint := range complaints {
			t.Error(complaint)
		}
	}
	t.Logf("%v; %v", cost, u.operator)
}
