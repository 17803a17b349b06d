package chunks

import (
	"context"
	"testing"
)

// Crash closes the store like a crash: what only the memory knows of the index is lost.
func (s *Store) Crash() error { return s.end(false) }

// Reclaim returns the space of deleted chunks now.
func (s *Store) Reclaim(ctx context.Context) error { return s.reclaimSpace(ctx) }

// Seal has all lanes begin new packs.
func (s *Store) Seal() {
	for _, l := range s.lanes {
		l.writing.Lock()
		if l.pack != nil {
			l.seal()
		}
		l.writing.Unlock()
	}
}

// Waiting is how many bytes wait to be written.
func (s *Store) Waiting() int64 {
	var waiting int64
	for _, l := range s.lanes {
		waiting += l.load()
	}
	return waiting
}

// Place is where the record of a chunk is.
func (s *Store) Place(hash Hash) (pack uint32, offset int64, found bool) {
	e, found, err := s.index.find(hash)
	return e.pack, e.offset, found && err == nil
}

// PackPath is the file of a pack.
func (s *Store) PackPath(id uint32) string { return packPath(s.packDir(), id) }

// Packs are the numbers of the packs.
func (s *Store) Packs() []uint32 { return s.packIDs() }

// Allocated is how many bytes of the disk all packs take.
func (s *Store) Allocated() int64 {
	var sum int64
	for _, id := range s.packIDs() {
		sum += s.pack(id).allocated()
	}
	return sum
}

// RestoreBallast takes the room that is given up on a full disk.
func (s *Store) RestoreBallast(t testing.TB) {
	t.Helper()
	if err := s.room.restoreBallast(); err != nil || !s.room.ballast {
		t.Fatalf("there is no ballast: %v", err)
	}
}
