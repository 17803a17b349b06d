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
	remaining int // lines still wanted
	from      [2]position
	found     [2]bool // by stream: from is set
	open      [2]bool // by stream: the beginning of the line at from is still to come
	stopped   bool
}

// seekTail puts the cursor where the lines begin that Options.Tail asks for and,
// unless the log is followed, sets where they end.
func (r *reader) seekTail() error {
	if r.opts.Tail < 0 {
		if r.opts.Follow {
			return nil
		}
		return r.seekEnd()
	}
	seqs, err := listFiles(r.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read log: %w", err)
	}
	t := &tail{opts: r.opts, remaining: r.opts.Tail}
	var end position // of the log, as it is now
	for _, seq := range slices.Backward(seqs) {
		offset, err := t.scan(r.dir, seq)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read log: %w", err)
		}
		if end.seq == 0 {
			end = position{seq, offset}
		}
		if t.stopped {
			break
		}
	}
	if !r.opts.Follow {
		r.to = &end // or there were more lines than were asked for
	}
	if end.seq == 0 {
		return nil
	}
	r.from = t.from
	for s := range r.from {
		if !t.found[s] {
			r.from[s] = end
		}
	}
	r.at = r.from[0]
	if r.from[1].before(r.at) {
		r.at = r.from[1]
	}
	return nil
}

// scan looks at the records of one file and returns where the last one ends.
func (t *tail) scan(dir string, seq uint64) (end int64, err error) {
	f, err := os.Open(filePath(dir, seq))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	end, err = readBackward(f, info.Size(), func(offset int64, line []byte) bool {
		return t.visit(position{seq, offset}, line)
	})
	if errors.Is(err, errRecord) {
		err = nil // damaged by other hands; what is behind the damage counts
	}
	return end, err
}

// visit looks at one record and reports whether to go on to the one before it.
func (t *tail) visit(at position, line []byte) bool {
	rec, err := parseRecord(line)
	if err != nil || !t.opts.Until.IsZero() && rec.time.After(t.opts.Until) {
		return true
	}
	if !t.opts.Since.IsZero() && rec.time.Before(t.opts.Since) {
		t.stopped = true
		return false
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
