package objects

import (
	"cmp"
	"slices"
	"time"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/placement"
)

// standing is what the copies on a node count for.
type standing int

const (
	// serving nodes have copies that count, and may get more.
	serving standing = iota
	// away nodes have not answered for a short time: their copies still count.
	away
	// lost nodes have not answered for so long that others copy what they have. They bring it back if they return.
	lost
	// leaving nodes are draining: their copies count only until others have them.
	leaving
)

// member is a node that has a number in the names.
type member struct {
	object.Node
	number   uint32
	standing standing
	// since is when it was last connected, if it is not.
	since time.Time
}

// fleet is the nodes at one moment. It is pure.
type fleet struct {
	members map[uint32]*member
	targets []placement.Node
	byUID   map[string]*member
	// home is how many nodes have or may have copies that count; existing includes those that are lost.
	home, existing int
}

// circumstances are what decides about the standing of nodes that do not answer.
type circumstances struct {
	now, began time.Time
	delay      time.Duration
	// forced lets nodes that do not answer count as lost at once.
	forced       bool
	disconnected func(uid string) time.Time
	offlineSince func(uid string) (time.Time, bool)
}

// newFleet joins nodes with their numbers. A number without a node is lost.
func newFleet(nodes []object.Node, numbers map[string]uint32, c circumstances) *fleet {
	f := &fleet{members: make(map[uint32]*member, len(numbers)), byUID: make(map[string]*member, len(numbers))}
	for uid, number := range numbers {
		f.members[number] = &member{Node: object.Node{UID: uid, Name: uid}, number: number, standing: lost}
	}
	for _, n := range nodes {
		m := f.members[numbers[n.UID]]
		if m == nil {
			continue // it gets its number soon
		}
		m.Node = n
		m.standing, m.since = c.stand(n)
		f.byUID[n.UID] = m
		if m.standing != leaving {
			f.existing++
		}
		if m.standing == serving || m.standing == away {
			f.home++
		}
		if m.standing == serving && n.Problem == "" {
			f.targets = append(f.targets, placement.Node{
				UID: n.UID, Zone: n.Zone, Class: n.Class, Capacity: n.Capacity, Free: n.Free,
			})
		}
	}
	return f
}

func (c circumstances) stand(n object.Node) (standing, time.Time) {
	switch {
	case n.Draining:
		return leaving, time.Time{}
	case n.Connected:
		return serving, time.Time{}
	}
	since := c.disconnected(n.UID)
	if offline, is := c.offlineSince(n.UID); is && offline.Before(since) {
		since = offline
	}
	if c.forced || c.now.Sub(since) >= c.delay && c.now.Sub(c.began) >= settle {
		return lost, since
	}
	return away, since
}

// troubled are the nodes whose chunks may lack a copy, in the order of their numbers.
func (f *fleet) troubled() []*member {
	var all []*member
	for _, m := range f.members {
		if m.standing != serving {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b *member) int { return cmp.Compare(a.number, b.number) })
	return all
}

// nextLost is when the next node that is away counts as lost; zero if there is none.
func (f *fleet) nextLost(c circumstances) time.Time {
	var next time.Time
	for _, m := range f.members {
		if m.standing != away {
			continue
		}
		at := m.since.Add(c.delay)
		if settled := c.began.Add(settle); at.Before(settled) {
			at = settled
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

// verdict is what a chunk lacks.
type verdict struct {
	// wanted is how many copies that count it should have, and could now.
	wanted int
	// missing is how many of them it lacks, and lacking whether it lacks some on nodes that answer.
	missing int
	lacking bool
	// sources are connected nodes that have it.
	sources []*member
	// zones are those of the copies that count.
	zones []string
	// leaving are nodes to be taken off, if at least so many others are left.
	leaving []uint32
	least   int
}

// judge decides what a chunk lacks.
func (f *fleet) judge(chunk *objectv1.Chunk) verdict {
	v := verdict{wanted: min(int(chunk.GetCopies()), f.home)}
	good, present, hollow := 0, 0, 0
	for _, number := range chunk.GetNodes() {
		m := f.members[number]
		if m == nil {
			hollow++
			continue
		}
		if m.Connected {
			v.sources = append(v.sources, m)
		}
		switch m.standing {
		case serving:
			present++
			good++
			v.zones = append(v.zones, m.Zone)
		case away:
			good++
			v.zones = append(v.zones, m.Zone)
		case lost:
			hollow++
		case leaving:
			v.leaving = append(v.leaving, number)
		}
	}
	v.missing = max(0, v.wanted-good)
	v.lacking = present < min(int(chunk.GetCopies()), f.existing)
	v.least = max(1, v.wanted) + hollow
	if present != good || v.wanted == 0 {
		v.leaving = nil // the copies of nodes that are away are not certain
	}
	return v
}

// place returns the nodes that should get a chunk, the best first, at most limit.
func (f *fleet) place(hash object.Hash, chunk *objectv1.Chunk, v verdict, avoid map[string]bool, limit int) []*member {
	able := make([]placement.Node, 0, len(f.targets))
	for _, n := range f.targets {
		if !avoid[n.UID] && !slices.Contains(chunk.GetNodes(), f.byUID[n.UID].number) {
			able = append(able, n)
		}
	}
	order := placement.Order(able, placement.Chunk{Hash: hash, Size: int64(chunk.GetSize()), Zones: v.zones}, limit)
	places := make([]*member, len(order))
	for i, uid := range order {
		places[i] = f.byUID[uid]
	}
	return places
}

// from returns the UIDs of nodes to copy a chunk from. The first one differs from chunk to chunk, so that all of them
// have the same work.
func from(hash object.Hash, sources []*member) []string {
	ordered := slices.Clone(sources)
	if len(ordered) == 0 {
		return nil
	}
	turn := int(hash[31]) % len(ordered)
	ordered = append(ordered[turn:], ordered[:turn]...)
	uids := make([]string, len(ordered))
	for i, m := range ordered {
		uids[i] = m.UID
	}
	return uids
}
