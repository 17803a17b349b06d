package logfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// Entry is a line of output, or a part of one.
type Entry struct {
	Time    time.Time
	Stream  Stream
	Partial bool // the line continues in the next entry of the same stream
	Line    string
	// Gap is set instead of a line if unread records are gone: the limits removed their files, or a crash of the
	// machine lost them.
	Gap bool
	// Begin is set instead of a line in the entry that Options.Begin asks for.
	Begin bool
	// Position is where reading resumes after this entry.
	Position Position
}

// Options says what to read of a log.
type Options struct {
	// After resumes after an earlier entry, if it is not nil. Since and Tail are then ignored.
	After *Position
	// Begin asks for a first entry that only says where reading begins.
	Begin bool
	// Since leaves out older records, if it is not zero. New output is delivered whatever its time: clocks may be set
	// back.
	Since time.Time
	// Until leaves out newer records, if it is not zero.
	Until time.Time
	// Tail is the number of lines to begin with, counted from the end; negative means all.
	Tail int
	// Follow also delivers new output, and waits for a log that does not exist yet, until Done is closed, Until has
	// passed or the log is removed.
	Follow bool
	// Done is closed by the caller once nothing more will be written. It may be nil.
	Done <-chan struct{}
}

// Read passes the log in dir to fn, entry by entry. It returns nil when it has delivered everything that was asked for,
// the error of fn unchanged, or that of ctx. A missing log is an empty one.
//
// If the limits remove files before they were read, a gap entry takes their place.
func Read(ctx context.Context, dir string, opts Options, fn func(Entry) error) error {
	r := &reader{dir: dir, opts: opts, fn: fn, buf: make([]byte, readBytes)}
	defer r.closeFile()
	if !opts.Follow {
		if err := r.seek(ctx); err != nil {
			return err
		}
		if err := r.drain(ctx); err != nil || !r.missed {
			return err
		}
		return r.admitGap(r.last) // nothing is left of what was asked for
	}
	// Watching begins before reading, so that nothing is missed in between.
	w := newWaiter(dir, opts)
	defer w.close()
	if err := r.seek(ctx); err != nil {
		return err
	}
	for {
		if err := r.drain(ctx); err != nil {
			return err
		}
		if w.finished && r.missed {
			return r.admitGap(r.last)
		}
		if w.finished {
			return nil
		}
		if err := w.wait(ctx); err != nil {
			return err
		}
	}
}

// readBytes is how much is read at once: more than the longest record.
const readBytes = 64 << 10

// position is a place in a log whose files are known.
type position struct {
	seq    uint64
	offset int64
}

func (p position) before(q position) bool {
	return p.seq < q.seq || p.seq == q.seq && p.offset < q.offset
}

// reader is a cursor over the files of a log.
type reader struct {
	dir  string
	opts Options
	fn   func(Entry) error
	// visit is called with the lines at the cursor; deliver if nil.
	visit func(line []byte) error

	from     [2]position // by stream: earlier records are not wanted
	fromHead [2]header   // of the files of from

	old  position  // earlier records were written before reading began
	to   *position // records from here on were written too late; nil if none were
	at   position  // of the next record
	file *os.File  // the open file at.seq, if any
	head header    // of the file at.seq, if known
	skip bool      // at is within a line that is not a record
	buf  []byte
	open [2]bool // by stream: the last entry was partial
	// missed is whether records were lost between the last delivered one and the cursor.
	missed bool
	last   time.Time // of the last delivered entry
	said   Position  // after the last delivered entry
}

// ended reports whether everything that remains was written too late.
func (r *reader) ended() bool { return r.to != nil && !r.at.before(*r.to) }

// drain delivers everything that is on disk.
func (r *reader) drain(ctx context.Context) error {
	for !r.ended() {
		if r.file == nil {
			if ok, err := r.openNext(); !ok || err != nil {
				return err
			}
		}
		if err := r.readFile(ctx); err != nil {
			return err
		}
		next, err := r.successor()
		if next == 0 || err != nil {
			return err
		}
		// The writer begins a file after it has finished the one before: now, and only now, everything that will ever
		// be in it can be read.
		if err := r.readFile(ctx); err != nil {
			return err
		}
		r.closeFile()
		r.proceed(next)
	}
	return nil
}

// proceed moves the cursor to the beginning of another file. One with a lower number is the first of a log that was
// created again, and one with the same number replaces the file at the cursor.
func (r *reader) proceed(next uint64) {
	before := next - 1
	if head := headerOf(r.dir, next); head.prev != 0 {
		before = head.prev
	}
	isReplaced := next == r.at.seq
	r.missed = r.missed || isReplaced && r.at.offset > 0 || !isReplaced && before != r.at.seq
	if next <= r.at.seq {
		r.from, r.old = [2]position{}, position{}
	}
	r.at, r.head = position{seq: next}, header{log: r.head.log}
}

// successor is the number of the next file, or 0 if there is none.
func (r *reader) successor() (uint64, error) {
	seqs, err := r.files()
	if err != nil || len(seqs) == 0 {
		return 0, err
	}
	if r.isReplaced() {
		return r.at.seq, nil
	}
	for _, seq := range seqs {
		if seq > r.at.seq {
			return seq, nil
		}
	}
	if seqs[len(seqs)-1] != r.at.seq && r.isAnew(seqs, r.head.log) {
		return seqs[0], nil
	}
	return 0, nil
}

// isReplaced reports whether the open file was removed and another one has its number.
func (r *reader) isReplaced() bool {
	if r.file == nil {
		return false
	}
	opened, openedErr := r.file.Stat()
	found, foundErr := os.Stat(r.file.Name())
	return openedErr == nil && foundErr == nil && !os.SameFile(opened, found)
}

// isAnew reports whether the files belong to another log than the one with that id: it was removed, and created again.
func (r *reader) isAnew(seqs []uint64, log uint32) bool {
	for _, seq := range slices.Backward(seqs) {
		if found := headerOf(r.dir, seq).log; found != 0 {
			return log != 0 && found != log
		}
	}
	return false
}

// files are the numbers of the log's files; none if the log does not exist.
func (r *reader) files() ([]uint64, error) {
	seqs, err := listFiles(r.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read log: %w", err)
	}
	return seqs, nil
}

// openNext opens the file at the cursor or, if that is missing, the next one. It reports false if there is none.
func (r *reader) openNext() (bool, error) {
	for {
		f, err := os.Open(filePath(r.dir, r.at.seq))
		if err == nil {
			r.file = f
			head, _ := readHeader(f)
			r.identify(head)
			r.skip = !beginsLine(f, r.at.offset)
			return true, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return false, fmt.Errorf("read log: %w", err)
		}
		next, err := r.successor()
		if next == 0 || err != nil {
			return false, err
		}
		r.missed = true // what should have been read here
		r.proceed(next)
	}
}

// identify remembers the header of the file at the cursor. A file without a header belongs to the log of its folder.
func (r *reader) identify(head header) {
	if head.log == 0 {
		head.log = r.head.log
	}
	r.head = head
}

// beginsLine reports whether a line begins at the offset; an invented position may be anywhere.
func beginsLine(f *os.File, offset int64) bool {
	var b [1]byte
	if offset == 0 {
		return true
	}
	_, err := f.ReadAt(b[:], offset-1)
	return err == nil && b[0] == '\n'
}

func (r *reader) closeFile() {
	if r.file != nil {
		r.file.Close()
		r.file, r.skip = nil, false
	}
}

// readFile delivers the rest of the current file, up to its last newline. What follows is read again once it is
// complete.
func (r *reader) readFile(ctx context.Context) error {
	for !r.ended() {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := r.file.ReadAt(r.buf, r.at.offset)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read log: %w", err)
		}
		if err := r.deliverLines(r.buf[:n]); err != nil {
			return err
		}
		if err != nil {
			return nil
		}
	}
	return nil
}

// deliverLines delivers the records in b, which was read at the cursor, and moves the cursor after the last one.
func (r *reader) deliverLines(b []byte) error {
	visit := r.visit
	if visit == nil {
		visit = r.deliver
	}
	full := len(b) == len(r.buf)
	for {
		line, rest, found := bytes.Cut(b, []byte{'\n'})
		if !found {
			break
		}
		if !r.skip {
			if err := visit(line); err != nil {
				return err
			}
		}
		r.skip = false
		r.at.offset += int64(len(line)) + 1
		full, b = false, rest
	}
	if full { // no record is that long
		r.skip = true
		r.at.offset += int64(len(b))
	}
	return nil
}

// deliver passes the record at the cursor to the callback if it is wanted.
func (r *reader) deliver(line []byte) error {
	if r.at.offset == 0 {
		head, _ := parseHeader(line)
		r.identify(head)
	}
	rec, err := parseRecord(line)
	if err != nil {
		return nil // a header, or damage by other programs; the rest of the file still counts
	}
	s := rec.stream.index()
	unwanted := r.at.before(r.from[s]) ||
		r.to != nil && !r.at.before(*r.to) ||
		r.at.before(r.old) && rec.time.Before(r.opts.Since) ||
		!r.opts.Until.IsZero() && rec.time.After(r.opts.Until)
	if unwanted {
		return nil
	}
	if r.missed {
		if err := r.admitGap(rec.time); err != nil {
			return err
		}
	}
	if rec.begins && r.open[s] {
		// The writer was killed before the end of the line was written.
		r.open[s] = false
		if err := r.hand(Entry{Time: rec.time, Stream: rec.stream}, r.at); err != nil {
			return err
		}
	}
	r.open[s], r.last = !rec.ends, rec.time
	behind := position{r.at.seq, r.at.offset + int64(len(line)) + 1}
	return r.hand(Entry{Time: rec.time, Stream: rec.stream, Partial: !rec.ends, Line: string(rec.line)}, behind)
}

// hand passes an entry to the callback. Reading resumes after it at a position of the current file.
func (r *reader) hand(e Entry, behind position) error {
	e.Position = r.position(behind)
	r.said = e.Position
	return r.fn(e)
}

// admitGap reports a gap before what was written at a time.
func (r *reader) admitGap(at time.Time) error {
	// The ends of lines are missing, too. They do not move the position: a reader that resumes there gets the gap.
	for s, place := range []*Place{&r.said.Stdout, &r.said.Stderr} {
		if !r.open[s] {
			continue
		}
		r.open[s], place.Open = false, false
		if err := r.fn(Entry{Time: at, Stream: streams[s], Position: r.said}); err != nil {
			return err
		}
	}
	r.missed = false
	return r.hand(Entry{Time: at, Gap: true}, r.at)
}
