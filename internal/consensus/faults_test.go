package consensus_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/state"
)

// piloted starts three voters, each on its own disk, and all run the pilot when they lead.
func piloted(t *testing.T, disks ...string) []*member {
	t.Helper()
	number := 0
	members := cluster(t, len(disks), func(o *consensus.Options) {
		if disks[number] != "" {
			o.Dir = filepath.Join(disks[number], "raft")
		}
		number++
	})
	var all []consensus.Member
	byID := map[string]*member{}
	for _, m := range members {
		all = append(all, consensus.Member{ID: m.id, Name: m.id, Address: m.options.Address, Alive: true})
		byID[m.id] = m
	}
	for _, m := range members {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- m.Lead(ctx, func(ctx context.Context) error {
				err := m.Pilot(ctx, consensus.PilotOptions{
					Voters: func() int { return len(disks) }, Members: func() []consensus.Member { return all },
					Progress: func(_ context.Context, id string) (consensus.Progress, error) { return byID[id].Progress(), nil },
				})
				if ctx.Err() != nil {
					return nil
				}
				return err
			})
		}()
		t.Cleanup(func() {
			cancel()
			<-done
		})
	}
	return members
}

func leaderOf(members []*member) *member {
	for _, m := range members {
		if m.IsLeader() {
			return m
		}
	}
	return nil
}

// proposeSomewhere makes a change at the current leader, as calls do: they wait for an election, and for a leader with
// a full disk to step down.
func proposeSomewhere(t *testing.T, members []*member, n int) {
	t.Helper()
	changeSomewhere(t, members, n, numbered)
}

func changeSomewhere(t *testing.T, members []*member, n int, transaction func(n int) *statev1.Transaction) {
	t.Helper()
	eventually(t, fmt.Sprintf("change %d", n), func() bool {
		leader := leaderOf(members)
		if leader == nil {
			return false
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := leader.Propose(ctx, transaction(n))
		exists := errors.As(err, new(*state.ExistsError)) // an earlier attempt with an unknown outcome
		return err == nil || exists
	})
}

// When the leader's disk fills up, it hands over to a server that has room, not to the other full one, and changes go
// on.
func TestLeaderWithAFullDiskStepsDown(t *testing.T) {
	small, alsoSmall := smallDisk(t, "192m"), smallDisk(t, "192m")
	members := piloted(t, small, alsoSmall, "")
	for n := range 10 {
		proposeSomewhere(t, members, n)
	}
	eventually(t, "the first server leads", func() bool {
		if leader := leaderOf(members); leader != nil && leader != members[0] {
			_ = leader.Transfer(t.Context(), members[0].id)
		}
		return leaderOf(members) == members[0]
	})
	refill := fill(t, alsoSmall, 1<<20)
	free := fill(t, small, 1<<20)
	eventually(t, "the server with room leads", func() bool { return leaderOf(members) == members[2] })
	for n := range 10 {
		proposeSomewhere(t, members, 10+n)
	}
	eventually(t, "it is known whose disks are full", func() bool {
		full := map[string]bool{}
		for _, h := range members[2].Health() {
			full[h.ID] = h.Full
		}
		return full[members[0].id] && full[members[1].id] && !full[members[2].id]
	})
	free()
	refill()
	eventually(t, "all have all", func() bool {
		for _, m := range members {
			if !slices.Equal(numbers(m.Stale()), upTo(20)) {
				return false
			}
		}
		return true
	})
}

// When all disks are full, leadership stays put: changes are refused with an explanation until there is room, and reads
// work.
func TestLeadershipStaysWhenAllDisksAreFull(t *testing.T) {
	disks := []string{smallDisk(t, "192m"), smallDisk(t, "192m"), smallDisk(t, "192m")}
	members := piloted(t, disks...)
	proposeSomewhere(t, members, 0)
	var frees []func()
	for _, disk := range disks {
		frees = append(frees, fill(t, disk, 1<<20))
	}
	var full *consensus.FullError
	eventually(t, "a change is refused", func() bool {
		leader := leaderOf(members)
		if leader == nil {
			return false
		}
		_, err := leader.Propose(t.Context(), numbered(1))
		return errors.As(err, &full)
	})
	eventually(t, "the leader knows that all are full", func() bool {
		leader := leaderOf(members)
		if leader == nil {
			return false
		}
		health := leader.Health()
		return len(health) == 3 && !slices.ContainsFunc(health, func(h consensus.Health) bool { return !h.Full })
	})
	eventually(t, "what is known is read", func() bool {
		leader := leaderOf(members)
		if leader == nil {
			return false
		}
		snapshot, err := leader.Read(t.Context())
		return err == nil && slices.Contains(numbers(snapshot), 0)
	})
	for _, free := range frees {
		free()
	}
	proposeSomewhere(t, members, 2)
}

// A server was away for so long that the others have deleted the part of the log that it lacks. A snapshot brings it up
// to date, and it continues.
func TestServerCatchesUpAfterTheLogWasShortened(t *testing.T) {
	members := cluster(t, 3, func(o *consensus.Options) { o.SnapshotThreshold = 8 })
	propose(t, members[0].Consensus, 0, 10)
	away := members[2]
	closed(t, away.Consensus)
	// More than a segment, because entries in the newest segment can still be read.
	large := strings.Repeat("a", 512<<10)
	for n := range 60 {
		changeSomewhere(t, members[:2], 100+n, func(n int) *statev1.Transaction { return labelled(n, large) })
	}
	for _, m := range members[:2] {
		if err := m.Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	back := newMember(t, 3, away.addresses) // at another address
	back.options.Dir, back.options.SnapshotThreshold = away.options.Dir, away.options.SnapshotThreshold
	back.open(t)
	has := func(count int) func() bool {
		return func() bool { return back.Stale().Count(state.KindNode) == count }
	}
	eventually(t, "it has all", has(70))
	// Raft records a snapshot after the state has been restored from it.
	eventually(t, "it was brought up to date by a snapshot", func() bool { return back.Stats().SnapshotIndex > 0 })
	for n := range 10 {
		proposeSomewhere(t, append(slices.Clone(members[:2]), back), 10+n)
	}
	eventually(t, "it goes on", has(80))
}
