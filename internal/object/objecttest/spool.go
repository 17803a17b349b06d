package objecttest

import (
	"os"

	"golang.org/x/sys/unix"
)

// largeChunk is how long a chunk is that goes into a file.
const largeChunk = 1 << 20

// spool keeps large chunks in a file without a name. A test that uploads gigabytes would need three times as much memory for
// them with the race detector, which keeps a shadow of what Go allocates.
type spool struct {
	file *os.File
	size int64
	maps [][]byte
}

// keep returns a copy of the data that is not part of Go's memory.
func (s *spool) keep(data []byte) ([]byte, error) {
	if s.file == nil {
		file, err := os.CreateTemp("", "chunks")
		if err != nil {
			return nil, err
		}
		s.file = file
		if err := os.Remove(file.Name()); err != nil {
			return nil, err
		}
	}
	if _, err := s.file.WriteAt(data, s.size); err != nil {
		return nil, err
	}
	kept, err := unix.Mmap(int(s.file.Fd()), s.size, len(data), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	page := int64(os.Getpagesize())
	s.size = (s.size + int64(len(data)) + page - 1) / page * page
	s.maps = append(s.maps, kept)
	return kept, nil
}

func (s *spool) close() {
	for _, kept := range s.maps {
		_ = unix.Munmap(kept)
	}
	if s.file != nil {
		_ = s.file.Close()
	}
}
