package storage

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// group is what a server knows of the names' group.
type group struct {
	leader     string
	leaderless time.Duration
	members    []*v1.NamesMember
	err        error
}

func (g group) Leader() string                                    { return g.leader }
func (g group) Leaderless() time.Duration                         { return g.leaderless }
func (g group) Health(context.Context) ([]*v1.NamesMember, error) { return g.members, g.err }

func TestProblemsOfTheNames(t *testing.T) {
	servers := []*v1.ServerStatus{
		{Uid: "1", Name: "one", Voter: true, Healthy: true},
		{Uid: "2", Name: "two", Voter: true, Healthy: true},
		{Uid: "3", Name: "three", Voter: true, Reason: "it does not answer"},
		{Uid: "4", Name: "four", Joining: true},
	}
	well := func(uid string) *v1.NamesMember { return &v1.NamesMember{Server: uid, Healthy: true} }
	ill := func(uid string) *v1.NamesMember {
		return &v1.NamesMember{Server: uid, Reason: "it is 5000 entries behind", Lag: 5000}
	}
	for name, test := range map[string]struct {
		group group
		want  []string
	}{
		"all are healthy":       {group{leader: "1", members: []*v1.NamesMember{well("1"), well("2"), well("3")}}, nil},
		"an election":           {group{leaderless: time.Second}, nil},
		"not founded yet":       {group{}, nil},
		"the leader is new":     {group{leader: "1", members: []*v1.NamesMember{{Server: "2", Unknown: true}}}, nil},
		"said of it elsewhere":  {group{leader: "1", members: []*v1.NamesMember{well("1"), ill("3"), ill("4")}}, nil},
		"of a removed server":   {group{leader: "1", members: []*v1.NamesMember{ill("9")}}, nil},
		"no leader":             {group{leaderless: 75 * time.Second}, []string{"no server has led the names of objects for 1m15s, so objects can be neither read nor written: 2 of the 3 voting servers must run and reach each other"}},
		"a server is behind":    {group{leader: "1", members: []*v1.NamesMember{ill("2")}}, []string{"server two is not ready to keep the names of objects: it is 5000 entries behind; objects are slow or fail there until it is; if that lasts, look at its disk and its log"}},
		"the leader is cut off": {group{leader: "2", err: errors.New("connection refused")}, []string{"server two leads the names of objects, and this server does not reach it: connection refused; objects are slow or fail here until it does"}},
	} {
		if got := problems(t.Context(), test.group, servers); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	alone := problems(t.Context(), group{leaderless: time.Minute}, servers[:1])
	if want := "no server has led the names of objects for 1m0s, so objects can be neither read nor written: the server may still be starting; if that lasts, its log says why"; !slices.Equal(alone, []string{want}) {
		t.Errorf("a single server: %q", alone)
	}
}
