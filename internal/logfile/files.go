package logfile

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// fileName is the name of the file with that number.
func fileName(seq uint64) string { return fmt.Sprintf("%08d.log", seq) }

// listFiles returns the numbers of the log's files in ascending order.
func listFiles(dir string) ([]uint64, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var seqs []uint64
	for _, name := range names {
		digits, isLog := strings.CutSuffix(name, ".log")
		seq, err := strconv.ParseUint(digits, 10, 64)
		if isLog && err == nil && seq > 0 && fileName(seq) == name {
			seqs = append(seqs, seq)
		}
	}
	slices.Sort(seqs)
	return seqs, nil
}

func filePath(dir string, seq uint64) string { return filepath.Join(dir, fileName(seq)) }

// backwardBlock is how much is read at once when a file is read from its end.
const backwardBlock = 64 << 10

// readBackward passes the records of a file to visit, the last one first, until visit
// returns false. It returns the offset after the last newline: a record after it is
// incomplete.
func readBackward(f io.ReaderAt, size int64, visit func(offset int64, line []byte) bool) (end int64, err error) {
	var (
		tail  []byte // data at offset whose start is not known yet
		at    = size
		found bool // whether a newline has been seen
	)
	for at > 0 {
		n := min(at, backwardBlock)
		block := make([]byte, n, int(n)+len(tail))
		if _, err := f.ReadAt(block, at-n); err != nil {
			return 0, err
		}
		at -= n
		tail = append(block, tail...)
		if !found {
			cut := bytes.LastIndexByte(tail, '\n') + 1
			if cut == 0 {
				tail = nil
				continue
			}
			found, end, tail = true, at+int64(cut), tail[:cut]
		}
		for len(tail) > 0 {
			start := bytes.LastIndexByte(tail[:len(tail)-1], '\n') + 1
			if start == 0 && at > 0 {
				break
			}
			if !visit(at+int64(start), tail[start:len(tail)-1]) {
				return end, nil
			}
			tail = tail[:start]
		}
		if len(tail) > 2*backwardBlock {
			return end, fmt.Errorf("%w: a line of more than %d bytes", errRecord, len(tail))
		}
	}
	return end, nil
}

// lastStamp returns the timestamp of the last record of a file, or the zero time if there
// is none, and the offset after it.
func lastStamp(f *os.File) (stamp time.Time, end int64, err error) {
	info, err := f.Stat()
	if err != nil {
		return time.Time{}, 0, err
	}
	end, err = readBackward(f, info.Size(), func(_ int64, line []byte) bool {
		stamp, err = parseStamp(line)
		return err != nil
	})
	return stamp, end, err
}

// firstStamp returns the timestamp of the first record of a file, or the zero time if there
// is none.
func firstStamp(f *os.File) time.Time {
	_, head := readHeader(f)
	var b [len(stampLayout)]byte
	if _, err := f.ReadAt(b[:], head); err != nil {
		return time.Time{}
	}
	stamp, err := parseStamp(b[:])
	if err != nil {
		return time.Time{}
	}
	return stamp
}
