package logfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Entry is a line of output, or a part of one.
type Entry struct {
	Time    time.Time
	Stream  Stream
	Partial bool // the line goes on in the next entry of the same stream
	Line    string
	// Gap is set instead of a line where files were removed by their limits before
	// they could be read.
	Gap bool
}

// Options says what to read of a log.
type Options struct {
	// Since and Until leave out what was written before and after them, if they
	// are not zero.
	Since, Until time.Time
	// Tail is the number of lines to begin with, counted from the end; all of
	// them if negative.
	Tail int
	// Follow goes on with what is written from now on, and waits for a log that
	// does not exist yet, until Done is closed, Until has passed or the log is
	// removed.
	Follow bool
	// Done is closed by the caller once nothing more will be written; nil if it
	// cannot know.
	Done <-chan struct{}
}

// Read hands the log in dir to fn, entry by entry. It returns nil when it has
// delivered everything that was asked for, the error of fn as it is, or that of
// ctx. A log that does not exist is an empty one.
//
// Files that are removed by their limits before they could be read are passed
// over, with an entry in their place.
func Read(ctx context.Context, dir string, opts Options, fn func(Entry) error) error {
	r := &reader{dir: dir, opts: opts, fn: fn, buf: make([]byte, readBytes)}
	defer r.closeFile()
	if !opts.Follow {
		if err := r.seekTail(); err != nil {
			return err
		}
		if err := r.drain(ctx); err != nil || !r.missed {
			return err
		}
		return r.admitGap(r.last) // nothing is left of what was asked for
	}
	// Watching begins before reading, so that nothing falls between the two.
	w := newWaiter(dir, opts)
	defer w.close()
	if err := r.seekTail(); err != nil {
		return err
	}
	for {
		if err := r.drain(ctx); err != nil {
			return err
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

// position is a place in a log.
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

	from [2]position // by stream: what comes before is not wanted
	to   *position   // what comes from here on was written too late; nil if nothing was
	at   position    // of the next record; file 0 if there is none yet
	file *os.File    // the file at.seq, if it is open
	skip bool        // at lies within a line that is no record
	buf  []byte
	open [2]bool // by stream: the last entry was partial
	// missed is whether files were removed between what was delivered and the cursor.
	missed bool
	last   time.Time // of what was delivered last
}

// seekEnd has reading end where the log does now: one that is written faster than
// it is read would have no end otherwise.
func (r *reader) seekEnd() error {
	seqs, err := listFiles(r.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read log: %w", err)
	}
	r.to = &position{}
	if len(seqs) == 0 {
		return nil
	}
	r.to.seq = seqs[len(seqs)-1]
	info, err := os.Stat(filePath(r.dir, r.to.seq))
	if errors.Is(err, os.ErrNotExist) {
		return nil // removed by its limits, and what came before it as well
	}
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	r.to.offset = info.Size()
	return nil
}

// ended reports whether all that remains was written too late.
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
		// The writer begins a file when it is done with the one before it: now,
		// and only now, what can be read is all there will be.
		if err := r.readFile(ctx); err != nil {
			return err
		}
		r.closeFile()
		r.proceed(next)
	}
	return nil
}

// proceed puts the cursor at the beginning of another file.
func (r *reader) proceed(next uint64) {
	r.missed = r.missed || r.at.seq != 0 && next > r.at.seq+1
	r.at = position{seq: next}
}

// successor is the number of the next file, or 0 if there is none.
func (r *reader) successor() (uint64, error) {
	seqs, err := listFiles(r.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("read log: %w", err)
	}
	for _, seq := range seqs {
		if seq > r.at.seq {
			return seq, nil
		}
	}
	return 0, nil
}

// openNext opens the file at the cursor or, if that is not there, the next one.
// It reports false if there is none.
func (r *reader) openNext() (bool, error) {
	for {
		if r.at.seq == 0 {
			next, err := r.successor()
			if next == 0 || err != nil {
				return false, err
			}
			r.proceed(next)
		}
		f, err := os.Open(filePath(r.dir, r.at.seq))
		if err == nil {
			r.file = f
			return true, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return false, fmt.Errorf("read log: %w", err)
		}
		next, err := r.successor()
		if next == 0 || err != nil {
			return false, err
		}
		r.missed = true // what was to be read here
		r.proceed(next)
	}
}

func (r *reader) closeFile() {
	if r.file != nil {
		r.file.Close()
		r.file, r.skip = nil, false
	}
}

// readFile delivers the rest of the present file, up to its last newline. What
// follows is read again once it is complete.
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

// deliverLines delivers the records in b, which was read at the cursor, and
// moves the cursor behind the last one.
func (r *reader) deliverLines(b []byte) error {
	full := len(b) == len(r.buf)
	for {
		line, rest, found := bytes.Cut(b, []byte{'\n'})
		if !found {
			break
		}
		if !r.skip {
			if err := r.deliver(line); err != nil {
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

// deliver hands the record at the cursor to the callback if it is wanted.
func (r *reader) deliver(line []byte) error {
	rec, err := parseRecord(line)
	if err != nil {
		return nil // the log was damaged by other hands; the rest of it still counts
	}
	s := rec.stream.index()
	unwanted := r.at.before(r.from[s]) ||
		r.to != nil && !r.at.before(*r.to) ||
		!r.opts.Since.IsZero() && rec.time.Before(r.opts.Since) ||
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
		if err := r.fn(Entry{Time: rec.time, Stream: rec.stream}); err != nil {
			return err
		}
	}
	r.open[s], r.last = !rec.ends, rec.time
	return r.fn(Entry{Time: rec.time, Stream: rec.stream, Partial: !rec.ends, Line: string(rec.line)})
}

// admitGap says that something is missing before what was written at a time.
func (r *reader) admitGap(at time.Time) error {
	for s, stream := range []Stream{Stdout, Stderr} {
		if !r.open[s] {
			continue
		}
		if err := r.fn(Entry{Time: at, Stream: stream}); err != nil { // the end of its line is missing, too
			return err
		}
		r.open[s] = false
	}
	r.missed = false
	return r.fn(Entry{Time: at, Gap: true})
}
