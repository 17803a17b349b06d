package storage_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/agent/storage"
)

const gi = int64(1) << 30

func refs(images []storage.Image) (all []string) {
	for _, one := range images {
		all = append(all, one.Ref)
	}
	return all
}

func TestTheLongestUnusedImagesGoFirst(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	images := []storage.Image{
		{Ref: "recent", Bytes: 5 * gi, LastUse: ago(time.Minute)},
		{Ref: "week", Bytes: 5 * gi, LastUse: ago(7 * 24 * time.Hour)},
		{Ref: "day", Bytes: 5 * gi, LastUse: ago(24 * time.Hour)},
		{Ref: "running", Bytes: 5 * gi, InUse: true, LastUse: ago(30 * 24 * time.Hour)},
		{Ref: "hour", Bytes: 5 * gi, LastUse: ago(time.Hour)},
	}
	for _, c := range []struct {
		name string
		used int64
		want []string
	}{
		{"a disk with room keeps all", 80 * gi, nil},
		{"exactly at the limit", 85 * gi, nil},
		{"down to 75 %", 86 * gi, []string{"week", "day", "hour"}},
		{"never what runs, nor what was just pulled", 99 * gi, []string{"week", "day", "hour"}},
	} {
		got := refs(storage.Unneeded(images, storage.Disk{Total: 100 * gi, Used: c.used}, 85, now))
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: removes %q, want %q", c.name, got, c.want)
		}
	}
}

// Whatever images there are: nothing in use goes, and no image goes before one that was unused for longer.
func TestUnneededImagesAreTheLongestUnused(t *testing.T) {
	now := time.Now()
	rapid.Check(t, func(t *rapid.T) {
		images := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) storage.Image {
			return storage.Image{
				Ref: rapid.StringMatching(`[a-z]{4}`).Draw(t, "ref"), Bytes: rapid.Int64Range(0, 10*gi).Draw(t, "bytes"),
				InUse: rapid.Bool().Draw(t, "in use"), LastUse: now.Add(-time.Duration(rapid.Int64Range(0, 1000).Draw(t, "age")) * time.Minute),
			}
		}), 0, 12, func(i storage.Image) string { return i.Ref }).Draw(t, "images")
		disk := storage.Disk{Total: 100 * gi, Used: rapid.Int64Range(0, 100*gi).Draw(t, "used")}
		high := rapid.IntRange(10, 99).Draw(t, "high")
		gone := storage.Unneeded(images, disk, high, now)
		if len(gone) > 0 && disk.Used*100 <= disk.Total*int64(high) {
			t.Fatalf("removes %v although there is room", refs(gone))
		}
		for _, kept := range images {
			if slices.Contains(gone, kept) {
				if kept.InUse {
					t.Fatalf("removes %s, which is in use", kept.Ref)
				}
				continue
			}
			for _, one := range gone {
				if !kept.InUse && kept.LastUse.Before(one.LastUse) {
					t.Fatalf("removes %s and keeps %s, which was unused for longer", one.Ref, kept.Ref)
				}
			}
		}
	})
}

func TestAReplicaThatWritesMoreThanItMayIsEvicted(t *testing.T) {
	room := storage.Disk{Total: 100 * gi, Used: 10 * gi}
	full := storage.Disk{Total: 100 * gi, Used: 100*gi - gi/2}
	for _, c := range []struct {
		name     string
		replicas []storage.Replica
		disk     storage.Disk
		want     string
		reason   string
	}{
		{"within limits", []storage.Replica{{UID: "a", Used: 9 * gi, Limit: 10 * gi}}, room, "", ""},
		{
			"above its limit",
			[]storage.Replica{{UID: "a", Used: gi, Limit: 10 * gi}, {UID: "b", Used: 11 * gi, Limit: 10 * gi}},
			room, "b",
			"Evicted: it has written 11Gi to its own layer, and its limit is 10Gi. Write to a volume, or set resources.limits.disk.",
		},
		{"without a limit, and with room", []storage.Replica{{UID: "a", Used: 50 * gi}}, room, "", ""},
		{
			"the disk is nearly full: who exceeds his request",
			[]storage.Replica{{UID: "a", Used: 20 * gi, Request: 30 * gi}, {UID: "b", Used: 5 * gi}},
			full, "b",
			"Evicted: the disk of the machine was nearly full (512Mi left), and it had written 5Gi to its own layer with no request.",
		},
		{"nobody has written anything", []storage.Replica{{UID: "a"}}, full, "", ""},
	} {
		uid, reason := storage.Victim(c.replicas, c.disk)
		if uid != c.want || !strings.HasPrefix(reason, c.reason) || (uid == "") != (reason == "") {
			t.Errorf("%s: evicts %q: %s", c.name, uid, reason)
		}
	}
}

// A disk that fills up loses unused images first, and then one replica at a time until there is room.
func TestWatchMakesRoomStepByStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		disk := storage.Disk{Total: 100 * gi, Used: 50 * gi}
		images := []storage.Image{{Ref: "old", Bytes: 5 * gi, LastUse: began.Add(-time.Hour)}, {Ref: "stuck", Bytes: gi, LastUse: began.Add(-2 * time.Hour)}}
		replicas := []storage.Replica{{UID: "small", Used: 3 * gi}, {UID: "large", Used: 40 * gi}}
		var mu sync.Mutex // guards all of these
		var did []string
		var failures int
		set := func(used int64) {
			mu.Lock()
			defer mu.Unlock()
			disk.Used = used
		}
		sofar := func() ([]string, int) {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(did), failures
		}
		go storage.Watch(ctx, storage.Options{
			Read: func() (storage.Disk, error) {
				mu.Lock()
				defer mu.Unlock()
				return disk, nil
			},
			HighPercent: func() int { return 85 },
			Images:      func(context.Context) ([]storage.Image, error) { return images, nil },
			Remove: func(_ context.Context, one storage.Image) error {
				mu.Lock()
				defer mu.Unlock()
				if one.Ref == "stuck" {
					return errors.New("it is held")
				}
				did = append(did, "remove "+one.Ref)
				disk.Used -= one.Bytes
				images = slices.DeleteFunc(images, func(i storage.Image) bool { return i.Ref == one.Ref })
				return nil
			},
			Replicas: func(context.Context) []storage.Replica { return replicas },
			Evict: func(_ context.Context, uid, _ string) {
				mu.Lock()
				defer mu.Unlock()
				did = append(did, "evict "+uid)
				disk.Used -= 40 * gi
				replicas = slices.DeleteFunc(replicas, func(r storage.Replica) bool { return r.UID == uid })
			},
			Failed: func(error) {
				mu.Lock()
				defer mu.Unlock()
				failures++
			},
		})
		time.Sleep(time.Minute)
		if did, _ := sofar(); len(did) > 0 {
			t.Errorf("with room it did %q", did)
		}
		set(90 * gi)
		time.Sleep(time.Minute)
		if did, _ := sofar(); !slices.Equal(did, []string{"remove old"}) {
			t.Errorf("on a disk that is filling up it did %q", did)
		}
		set(100*gi - 1)
		time.Sleep(time.Minute)
		cancel()
		synctest.Wait()
		allDid, failed := sofar()
		if want := []string{"remove old", "evict large"}; !slices.Equal(allDid, want) || failed == 0 {
			t.Errorf("on a full disk it did %q with %d failures, want %q", allDid, failed, want)
		}
	})
}
