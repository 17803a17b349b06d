package logfile

import (
	"errors"
	"fmt"
	"os"
	"slices"
)

// tail finds where the last lines of a log begin, reading it from its end.
type tail struct {
	opts      Options
	first     position // earlier records are not wanted
	end       position // of the log, as it is now
	remaining int      // lines still wanted
	from      [2]position
	found     [2]bool // by stream: from is set
	open      [2]bool // by stream: the beginning of the line at from is still to come
	stopped   bool
}

// seekTail moves the cursor to where the lines of Options.Tail begin. They are between the two positions.
func (r *reader) seekTail(seqs []uint64, first, end position) error {
	r.at = first
	if r.opts.Tail < 0 {
		r.from = [2]position{first, first}
		return nil
	}
	t := &tail{opts: r.opts, first: first, end: end, remaining: r.opts.Tail}
	for _, seq := range slices.Backward(seqs) {
		err := t.scan(r.dir, seq)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("read log: %w", err)
		}
		if t.stopped {
			break
		}
	}
	r.from = t.from
	for s := range r.from {
		if !t.found[s] {
			r.from[s] = end
		}
		r.fromHead[s] = headerOf(r.dir, r.from[s].seq)
	}
	r.at = r.from[0]
	if r.from[1].before(r.at) {
		r.at = r.from[1]
	}
	return nil
}

// scan examines the records of one file.
func (t *tail) scan(dir string, seq uint64) error {
	f, err := os.Open(filePath(dir, seq))
	if err != nil {
		return err
	}
	defer f.Close()
	size := t.end.offset
	if seq != t.end.seq {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		size = info.Size()
	}
	_, err = readBackward(f, size, func(offset int64, line []byte) bool {
		return t.visit(position{seq, offset}, line)
	})
	if errors.Is(err, errRecord) {
		err = nil // damaged by other programs; what is after the damage counts
	}
	return err
}

// visit examines one record and reports whether to continue with the one before it.
func (t *tail) visit(at position, line []byte) bool {
	if at.before(t.first) {
		t.stopped = true
		return false
	}
	rec, err := parseRecord(line)
	if err != nil || rec.time.Before(t.opts.Since) || !t.opts.Until.IsZero() && rec.time.After(t.opts.Until) {
		return true
	}
	s := rec.stream.index()
	isNewLine := !t.open[s]
	if !isNewLine || t.remaining > 0 {
		if isNewLine {
			t.remaining--
		}
		t.from[s], t.found[s], t.open[s] = at, true, !rec.begins
	}
	t.stopped = t.remaining == 0 && !t.open[0] && !t.open[1]
	return !t.stopped
}
