package consensus

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
)

// When it opens, the log store checks only the last batch of entries, and treats the first thing that it does not
// understand as the end of the log. This file checks every batch beforehand, so that damage in the middle is not mistaken
// for the torn end of a write that a crash interrupted.
//
// A segment file is a header and then frames, all multiples of eight bytes:
//
//	entry   1, three zeros, length in bytes 4 to 8, payload padded to eight bytes
//	index   2, the same; sealed segments end with one
//	commit  3, three zeros, checksum in bytes 4 to 8 of everything since the previous commit, or since the beginning
const (
	segmentHeader = 32
	frameHeader   = 8

	frameEntry  = 1
	frameIndex  = 2
	frameCommit = 3
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// verifyLog checks all segments of a log.
func verifyLog(dir string) error {
	segments, err := segmentsOf(dir)
	if err != nil {
		return err
	}
	var newest uint64
	for _, s := range segments {
		newest = max(newest, s.number)
	}
	for _, s := range segments {
		data, err := os.ReadFile(s.path)
		if err != nil {
			return fmt.Errorf("check the log: %w", err)
		}
		if reason := checkSegment(data, s.number == newest); reason != "" {
			return fmt.Errorf("the log is damaged: %s %s; %s",
				filepath.Base(s.path), reason, wayBack)
		}
	}
	return nil
}

// segment is a file of the log. The one with the highest number is being written.
type segment struct {
	path   string
	first  uint64 // index of its first entry
	number uint64
}

// segmentsOf are the files of a log, oldest entries first.
func segmentsOf(dir string) ([]segment, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil {
		return nil, err
	}
	segments := make([]segment, len(paths))
	for i, path := range paths {
		s := segment{path: path}
		if _, err := fmt.Sscanf(filepath.Base(path), "%020d-%016x.wal", &s.first, &s.number); err != nil {
			return nil, fmt.Errorf("the log is damaged: %s is no name of a segment: remove what does not belong there", filepath.Base(path))
		}
		segments[i] = s
	}
	return segments, nil
}

// checkSegment returns what is wrong with a segment. Only the newest one may have a torn end.
func checkSegment(data []byte, newest bool) string {
	whole, sealed := segmentHeader, false // end of the last commit; the first one covers the header, too
	batch, indexed := 0, false            // start of the current batch
	for offset := segmentHeader; ; {
		frame, size := frameAt(data, offset)
		switch frame {
		case frameEntry:
		case frameIndex:
			indexed = true
		case frameCommit:
			if !committed(data, batch, offset) {
				if following, _ := frameAt(data, offset+size); newest && following == 0 {
					return checkEnd(data, whole, true)
				}
				return fmt.Sprintf("has a wrong checksum for bytes %d to %d", batch, offset)
			}
			whole, batch, sealed = offset+size, offset+size, indexed
		default:
			return checkEnd(data, whole, sealed || newest)
		}
		offset += size
	}
}

// checkEnd examines what follows the last complete batch. A crash leaves at most one unfinished batch there, so a
// finished one proves damage before it.
func checkEnd(data []byte, whole int, complete bool) string {
	if !complete {
		return fmt.Sprintf("ends at byte %d without being sealed", whole)
	}
	const tries = 8 // what looks like a commit may be the payload of an entry
	var starts []int
	for offset := whole; offset+frameHeader <= len(data); offset += frameHeader {
		if frame, _ := frameAt(data, offset); frame != frameCommit {
			continue
		}
		for _, start := range starts {
			if committed(data, start, offset) {
				return fmt.Sprintf("has whole entries at byte %d, after damage from byte %d on", start, whole)
			}
		}
		starts = append(starts[max(0, len(starts)-tries+1):], offset+frameHeader)
	}
	return ""
}

// frameAt returns the kind and the size of a frame, 0 and 0 if there is none.
func frameAt(data []byte, offset int) (kind byte, size int) {
	if offset+frameHeader > len(data) {
		return 0, 0
	}
	header := data[offset : offset+frameHeader]
	kind, size = header[0], frameHeader
	if kind == frameEntry || kind == frameIndex {
		length := int(binary.LittleEndian.Uint32(header[4:]))
		size += (length + frameHeader - 1) / frameHeader * frameHeader
	}
	reserved := header[1] | header[2] | header[3]
	if kind < frameEntry || kind > frameCommit || reserved != 0 || offset+size > len(data) {
		return 0, 0
	}
	return kind, size
}

// committed reports whether the commit frame at end matches the data from start to there.
func committed(data []byte, start, end int) bool {
	return crc32.Checksum(data[start:end], castagnoli) == binary.LittleEndian.Uint32(data[end+4:])
}
