package objects

import (
	"context"
	"time"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/names"
	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	// scanPage is how many chunks are looked at in one view.
	scanPage = 1000
	// scanShare is how much longer a survey pauses than it works: clients come first.
	scanShare = 4
	// lonelyEvery is how often the chunks of a single node are looked at: nothing can be copied there.
	lonelyEvery = time.Hour
)

// survey is what all chunks together lack.
type survey struct {
	// began is when it began; zero if there was none.
	began time.Time
	took  time.Duration
	// lacking and unreachable are chunks, and lost those of the latter that are on no node any more.
	lacking, unreachable, lost int64
	// todo are copies to make, of so many bytes, and drops chunks to be taken off nodes that are leaving.
	todo, bytes, drops int64
	// roomless are chunks that lack a copy and for which no node has room, and few those that want more copies than there
	// are nodes.
	roomless, few int64
	// lonely is whether there was one node only.
	lonely bool
	// on are the chunks that lack something on each troubled node, by UID.
	on    map[string]int64
	fleet *fleet
}

// glance is a chunk that may lack something, with the nodes as they are now.
type glance struct {
	hash    object.Hash
	chunk   *objectv1.Chunk
	fleet   *fleet
	verdict verdict
	epoch   uint64
}

// circumstances of now.
func (l *Loops) circumstances(t *term, forced bool) circumstances {
	return circumstances{
		now: time.Now(), began: t.began, delay: l.o.Settings().RepairDelay, forced: forced,
		disconnected: func(uid string) time.Time { return t.at(uid).since }, offlineSince: l.o.OfflineSince,
	}
}

// scan is a walk over all chunks that may lack a copy: first those that the names count as short, then those of each node
// that does not serve.
type scan struct {
	loops  *Loops
	term   *term
	forced bool
	// hurry lets it go on without pauses.
	hurry bool
	fleet *fleet
}

// each calls f for each of the chunks, once.
func (s *scan) each(ctx context.Context, f func(glance) error) error {
	if err := s.pages(ctx, nil, f); err != nil {
		return err
	}
	if err := s.loops.read(ctx, s.refresh); err != nil {
		return err
	}
	for _, m := range s.fleet.troubled() {
		if err := s.pages(ctx, m, f); err != nil {
			return err
		}
	}
	return nil
}

// refresh looks at the nodes.
func (s *scan) refresh(view *names.View) error {
	numbers, err := view.Nodes()
	s.fleet = newFleet(s.loops.o.Disks.Nodes(), numbers, s.loops.circumstances(s.term, s.forced))
	return err
}

// pages walks over short chunks, or over those of a node.
func (s *scan) pages(ctx context.Context, on *member, f func(glance) error) error {
	var after object.Hash
	for {
		began := time.Now()
		page, err := s.page(ctx, on, after)
		if err != nil {
			return err
		}
		for _, g := range page {
			if on != nil && !s.first(g.chunk, on) {
				continue
			}
			if err := f(g); err != nil {
				return err
			}
		}
		if len(page) < scanPage {
			return ctx.Err()
		}
		after = page[len(page)-1].hash
		if s.hurry {
			continue
		}
		if err := sleep.For(ctx, scanShare*time.Since(began)); err != nil {
			return err
		}
	}
}

// page returns the next chunks, from a view of its own.
func (s *scan) page(ctx context.Context, on *member, after object.Hash) (glances []glance, err error) {
	err = s.loops.read(ctx, func(view *names.View) error {
		if err := s.refresh(view); err != nil {
			return err
		}
		var page []names.Found
		if on == nil {
			page, err = view.Short(after, scanPage)
		} else {
			page, err = view.ChunksOn(on.number, after, scanPage)
		}
		for _, found := range page {
			glances = append(glances, glance{found.Hash, found.Chunk, s.fleet, s.fleet.judge(found.Chunk), view.Epoch()})
		}
		return err
	})
	return glances, err
}

// first is whether a chunk was not seen before the walk came to a node.
func (s *scan) first(chunk *objectv1.Chunk, on *member) bool {
	if len(chunk.GetNodes()) < int(chunk.GetCopies()) {
		return false
	}
	for _, number := range chunk.GetNodes() {
		if number >= on.number {
			return true
		}
		if m := s.fleet.members[number]; m != nil && m.standing != serving {
			return false
		}
	}
	return true
}

// add counts a chunk.
func (s *survey) add(g glance) {
	v := g.verdict
	if v.lacking || v.missing > 0 {
		s.lacking++
	}
	for _, number := range g.chunk.GetNodes() {
		if m := g.fleet.members[number]; m != nil && (m.standing == leaving || m.standing != serving && v.lacking) {
			s.on[m.UID]++
		}
	}
	if len(v.sources) == 0 {
		s.unreachable++
		if len(g.chunk.GetNodes()) == 0 {
			s.lost++
		}
		return
	}
	if int(g.chunk.GetCopies()) > g.fleet.existing {
		s.few++
	}
	if v.missing == 0 {
		s.drops += int64(min(1, len(v.leaving)))
		return
	}
	places := int64(len(g.fleet.place(g.hash, g.chunk, v, nil, v.missing)))
	s.todo += places
	s.bytes += places * int64(g.chunk.GetSize())
	if int(places) < v.missing {
		s.roomless++
	}
}

// survey counts what all chunks lack.
func (l *Loops) survey(ctx context.Context, t *term, forced bool) (survey, error) {
	if before := t.surveyed(); !forced && time.Since(before.began) < lonelyEvery && l.lonely(t) && before.lonely {
		return before, nil
	}
	s := survey{began: time.Now(), on: map[string]int64{}, lonely: l.lonely(t)}
	walk := &scan{loops: l, term: t, forced: forced, hurry: forced}
	err := walk.each(ctx, func(g glance) error {
		s.add(g)
		return nil
	})
	s.fleet, s.took = walk.fleet, time.Since(s.began)
	return s, err
}

// lonely is whether there is one node only, and it serves.
func (l *Loops) lonely(t *term) bool {
	nodes := l.o.Disks.Nodes()
	if len(nodes) != 1 {
		return false
	}
	standing, _ := l.circumstances(t, false).stand(nodes[0])
	return standing == serving
}
