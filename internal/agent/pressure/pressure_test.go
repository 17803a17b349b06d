package pressure_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/agent/pressure"
)

const (
	mi = int64(1) << 20
	gi = int64(1) << 30
)

func TestMemoryIsShort(t *testing.T) {
	ample := pressure.Room{Total: 8 * gi, Available: 4 * gi}
	for _, c := range []struct {
		name  string
		now   pressure.Reading
		short bool
		still bool // if it was short before
	}{
		{"plenty", pressure.Reading{Machine: ample}, false, false},
		{"below 5 %", pressure.Reading{Machine: pressure.Room{Total: 8 * gi, Available: 400 * mi}}, true, true},
		{"just above: ends later than it begins", pressure.Reading{Machine: pressure.Room{Total: 8 * gi, Available: 500 * mi}}, false, true},
		{"far above", pressure.Reading{Machine: pressure.Room{Total: 8 * gi, Available: 700 * mi}}, false, false},
		{"5 % of a large machine are plenty", pressure.Reading{Machine: pressure.Room{Total: 1024 * gi, Available: gi}}, false, false},
		{"100 MiB of a small one are not", pressure.Reading{Machine: pressure.Room{Total: gi, Available: 99 * mi}}, true, true},
		{"a tiny one needs less", pressure.Reading{Machine: pressure.Room{Total: 512 * mi, Available: 90 * mi}}, false, false},
		{"the replicas have used up their part", pressure.Reading{Machine: ample, Pool: pressure.Room{Total: 7 * gi, Available: 200 * mi}}, true, true},
		{"their part is unknown", pressure.Reading{Machine: ample, Pool: pressure.Room{}}, false, false},
		{"programs stall with little left", pressure.Reading{Machine: pressure.Room{Total: 8 * gi, Available: gi}, Stalled: 25}, true, true},
		{"programs stall a little", pressure.Reading{Machine: pressure.Room{Total: 8 * gi, Available: gi}, Stalled: 15}, false, true},
		{"programs stall with plenty left: they have reached their own limits", pressure.Reading{Machine: ample, Stalled: 90}, false, false},
	} {
		var s pressure.Shortage
		if got := s.Update(c.now); got != c.short {
			t.Errorf("%s: short is %t", c.name, got)
		}
		s.Update(pressure.Reading{Machine: pressure.Room{Total: 8 * gi}})
		if got := s.Update(c.now); got != c.still {
			t.Errorf("%s, when it was short before: short is %t", c.name, got)
		}
	}
}

func TestVictim(t *testing.T) {
	for _, c := range []struct {
		name     string
		replicas []pressure.Replica
		want     string
	}{
		{"nothing runs", nil, ""},
		{"what uses next to nothing stays", []pressure.Replica{{UID: "a", Used: mi}}, ""},
		{"most above its request", []pressure.Replica{{UID: "a", Used: 900 * mi, Request: 800 * mi}, {UID: "b", Used: 700 * mi, Request: 128 * mi}}, "b"},
		{"lowest priority first", []pressure.Replica{{UID: "a", Used: 700 * mi, Priority: 100}, {UID: "b", Used: 20 * mi, Priority: 50}}, "b"},
		{"a kept promise counts more than priority", []pressure.Replica{{UID: "a", Used: 100 * mi, Request: 200 * mi, Priority: 0}, {UID: "b", Used: 100 * mi, Priority: 900}}, "b"},
		{"if all keep to their requests, the lowest priority", []pressure.Replica{{UID: "a", Used: 90 * mi, Request: 200 * mi, Priority: 10}, {UID: "b", Used: 100 * mi, Request: 100 * mi, Priority: 5}}, "b"},
		{"a workload with others can spare one", []pressure.Replica{{UID: "a", Used: 100 * mi, Alone: true}, {UID: "b", Used: 60 * mi}}, "b"},
		{"within limits", []pressure.Replica{{UID: "a", Used: 300 * mi, Alone: true}, {UID: "b", Used: 60 * mi}}, "a"},
		{"the newest of equals", []pressure.Replica{{UID: "a", Used: 60 * mi}, {UID: "b", Used: 60 * mi}}, "b"},
	} {
		if got, _ := pressure.Victim(c.replicas); got.UID != c.want {
			t.Errorf("%s: the victim is %q, want %q", c.name, got.UID, c.want)
		}
	}
}

// Whatever runs, a replica that keeps to its request goes only if all do, and never one with a higher priority than
// another that would do as well.
func TestVictimIsTheLeastEntitled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		replicas := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) pressure.Replica {
			return pressure.Replica{
				UID: rapid.StringMatching(`[a-z]{6}`).Draw(t, "uid"), Priority: rapid.Int32Range(0, 3).Draw(t, "priority"),
				Used: rapid.Int64Range(0, 100).Draw(t, "used") * mi, Request: rapid.Int64Range(0, 100).Draw(t, "request") * mi,
				Alone: rapid.Bool().Draw(t, "alone"),
			}
		}), 0, 8).Draw(t, "replicas")
		before := slices.Clone(replicas)
		victim, ok := pressure.Victim(replicas)
		if !slices.Equal(before, replicas) {
			t.Fatal("the input was changed")
		}
		for _, r := range replicas {
			switch {
			case r.Used < 4*mi:
			case !ok:
				t.Fatalf("nothing goes, and %+v could", r)
			case r.Used > r.Request && victim.Used <= victim.Request:
				t.Fatalf("%+v keeps to its request and goes before %+v", victim, r)
			case (r.Used > r.Request) == (victim.Used > victim.Request) && r.Priority < victim.Priority:
				t.Fatalf("%+v goes before %+v of a lower priority", victim, r)
			}
		}
	})
}

func TestReasonNamesShortageUseAndRequest(t *testing.T) {
	machine := pressure.Reading{Machine: pressure.Room{Total: 8 * gi, Available: 92 * mi}}
	pool := pressure.Reading{Machine: pressure.Room{Total: 8 * gi, Available: gi}, Pool: pressure.Room{Total: 7 * gi, Available: 50 * mi}}
	for want, got := range map[string]string{
		"Evicted: the machine was short of memory (92Mi left), and it used 700Mi with a request of 128Mi.":                                     pressure.Replica{Used: 700 * mi, Request: 128 * mi}.Reason(machine),
		"Evicted: the replicas of the machine were short of memory (50Mi left of the 7Gi that they share), and it used 700Mi with no request.": pressure.Replica{Used: 700 * mi}.Reason(pool),
	} {
		if got != want {
			t.Errorf("the reason is %q, want %q", got, want)
		}
	}
}

func TestKernelKillsTheLeastEntitledFirst(t *testing.T) {
	for _, c := range []struct {
		name            string
		spared, victims int
	}{
		{"higher priority", pressure.OOMScore(900, 0, gi), pressure.OOMScore(100, 0, gi)},
		{"larger request", pressure.OOMScore(100, gi/2, gi), pressure.OOMScore(100, 0, gi)},
		{"the agent, whatever is requested", 0, pressure.OOMScore(1000, 9*gi, gi)},
	} {
		if c.spared >= c.victims {
			t.Errorf("%s: %d is not below %d", c.name, c.spared, c.victims)
		}
	}
	if highest := pressure.OOMScore(0, 0, 0); highest > 1000 {
		t.Errorf("the kernel does not accept the score %d", highest)
	}
}

func TestReserveLeavesMostToReplicas(t *testing.T) {
	for total, want := range map[int64]int64{256 * mi: 64 * mi, gi: 128 * mi, 8 * gi: 8 * gi / 20, 512 * gi: gi} {
		if got := pressure.Reserve(total); got != want {
			t.Errorf("of %d MiB, %d MiB are kept, want %d", total/mi, got/mi, want/mi)
		}
	}
}

func TestStalledReadsTheKernelsFile(t *testing.T) {
	file := "some avg10=31.50 avg60=1.00 avg300=0.00 total=2345467\nfull avg10=12.25 avg60=0.50 avg300=0.00 total=980678\n"
	if got := pressure.Stalled([]byte(file)); got != 12.25 {
		t.Errorf("the share is %g", got)
	}
	if got := pressure.Stalled(nil); got != 0 {
		t.Errorf("without a file the share is %g", got)
	}
}

// One replica goes at a time, and the next only if its end did not help.
func TestWatchWaitsForTheEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		running := []pressure.Replica{{UID: "a", Used: 100 * mi}, {UID: "b", Used: 200 * mi}, {UID: "c", Used: 300 * mi}}
		began, broken := time.Now(), true
		var evicted []string
		var failures int
		go pressure.Watch(ctx, pressure.Options{
			Read: func() (pressure.Reading, error) {
				if broken {
					return pressure.Reading{}, errors.New("no such file")
				}
				available := []int64{gi, 900 * mi, 500 * mi, 300 * mi}[len(running)] // enough once two are gone
				return pressure.Reading{Machine: pressure.Room{Total: 8 * gi, Available: available}}, nil
			},
			Replicas: func(context.Context) []pressure.Replica { return running },
			Evict: func(_ context.Context, r pressure.Replica, _ string) {
				evicted = append(evicted, r.UID+" "+time.Since(began).String())
				time.Sleep(time.Second)
				running = slices.DeleteFunc(running, func(one pressure.Replica) bool { return one.UID == r.UID })
			},
			Failed: func(error) { failures, broken = failures+1, false },
		})
		time.Sleep(time.Minute)
		cancel()
		synctest.Wait()
		if want := []string{"c 1s", "b 4s"}; !slices.Equal(evicted, want) || failures != 1 {
			t.Errorf("evicted %q after %d failures, want %q", evicted, failures, want)
		}
	})
}
