package chunks

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"golang.org/x/sys/unix"
)

const (
	// walkWindow is how much is read at once where records are small.
	walkWindow = 1 << 20
	// walkGlance is how much is read behind a large record.
	walkGlance = 8 << 10
	// unreadable is how much is skipped when the disk cannot read something.
	unreadable = 4096
)

// walker reads the records of a part of a pack, which begins with a record.
type walker struct {
	pack     *pack
	from, to int64
	// cold has everything read from the disk, and not from the kernel's memory.
	cold bool
	// visit is called for every record.
	visit func(offset int64, h header) error
	// lost is called for every range that is neither a record nor zero.
	lost func(from, to int64)
}

func (o walker) walk() error {
	if o.from >= o.to {
		return nil
	}
	w := &window{p: o.pack, to: o.to, cold: o.cold, buf: make([]byte, walkWindow)}
	for at := o.from; at < o.to; {
		if h, ok := w.record(at); ok {
			if err := o.visit(at, h); err != nil {
				return err
			}
			size := recordSize(h.size)
			w.large = size > walkGlance
			at += size
			continue
		}
		next, dirty := w.search(at)
		if dirty {
			o.lost(at, next)
		}
		at = next
	}
	return nil
}

// window is the part of a pack that was read last.
type window struct {
	p     *pack
	to    int64
	cold  bool
	buf   []byte
	start int64
	have  []byte // what is at start
	large bool   // whether the last record was large
}

// at returns at least n bytes at an offset if the pack has them and they can be read.
func (w *window) at(offset int64, n int) ([]byte, error) {
	if skip := offset - w.start; skip >= 0 && skip+int64(n) <= int64(len(w.have)) {
		return w.have[skip:], nil
	}
	size := int64(walkWindow)
	if w.large {
		size = walkGlance
	}
	size = max(min(size, w.to-offset), 0)
	if w.cold {
		w.p.forgetCached(offset, size)
	}
	got, err := w.p.file.ReadAt(w.buf[:size], offset)
	w.start, w.have = offset, w.buf[:got]
	if err != nil && !errors.Is(err, io.EOF) && got < n {
		return nil, err
	}
	return w.have, nil
}

// record returns the header of a record that is completely in the part.
func (w *window) record(at int64) (header, bool) {
	b, err := w.at(at, headerSize)
	if err != nil {
		return header{}, false
	}
	h, ok := parseHeader(b, w.p.marker, at)
	return h, ok && at+recordSize(h.size) <= w.to
}

// search returns where the next record is, and whether there is something else than zeros before it.
func (w *window) search(from int64) (at int64, dirty bool) {
	w.large = false
	for at = from; ; {
		at = w.skipHole(at)
		b, err := w.at(at, headerSize)
		if err != nil {
			at, dirty = at+unreadable, true
			if at >= w.to {
				return w.to, dirty
			}
			continue
		}
		if len(b) < headerSize {
			return w.to, dirty || !zero(b)
		}
		// Of a header that begins later than this, only a part has been read.
		places := (len(b)-headerSize)/alignment*alignment + alignment
		i, found := w.find(b, places, at)
		dirty = dirty || !zero(b[:i])
		at += int64(i)
		if found {
			return at, dirty
		}
	}
}

// find looks for a record at the first places of what has been read at an offset.
func (w *window) find(b []byte, places int, at int64) (int, bool) {
	for i := 0; i < places; {
		skip := bytes.Index(b[i:], w.p.marker[:])
		if skip < 0 || i+skip >= places {
			break
		}
		i += skip
		h, ok := parseHeader(b[i:], w.p.marker, at+int64(i))
		if ok && i%alignment == 0 && at+int64(i)+recordSize(h.size) <= w.to {
			return i, true
		}
		i = i&^(alignment-1) + alignment
	}
	return places, false
}

// skipHole returns where the next byte is that is not in a hole.
func (w *window) skipHole(at int64) int64 {
	if at >= w.to {
		return w.to
	}
	data, err := unix.Seek(w.p.fd(), at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return w.to
	case err == nil && data > at:
		return min(max(data&^(alignment-1), at), w.to)
	default:
		return at
	}
}

// zero is whether there are only zeros.
func zero(b []byte) bool {
	for ; len(b) >= 8; b = b[8:] {
		if binary.LittleEndian.Uint64(b) != 0 {
			return false
		}
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
