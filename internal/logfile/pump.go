package logfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

const (
	pumpBytes = 64 << 10 // what a pipe holds

	// partWait is how long to wait for the end of a line before its beginning is written as
	// a part.
	partWait = 100 * time.Millisecond
)

// Pump writes what r delivers as output of the stream until r ends, and ends its last line
// if r did not. The error is that of reading, never of writing.
//
// An unfinished line is written as a part after a tenth of a second, if r has read
// deadlines as pipes have, and at once if it has none.
func (w *Writer) Pump(stream Stream, r io.Reader) error {
	in := newPartReader(r)
	buf := make([]byte, pumpBytes)
	have := 0     // bytes in buf
	fresh := true // whether they belong to a line that has just begun
	for {
		if err := in.limit(have > 0, fresh); err != nil {
			return fmt.Errorf("read %s: %w", stream, err)
		}
		n, err := r.Read(buf[have:])
		fresh = have == 0
		have += n
		paused := errors.Is(err, os.ErrDeadlineExceeded)
		if err != nil && !paused {
			w.finish(stream, buf[:have])
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("read %s: %w", stream, err)
		}
		cut := have
		if !paused && in.deadlines != nil {
			cut = writable(buf[:have])
		}
		fresh = fresh || cut > 0
		w.append(stream, buf[:cut])
		have = copy(buf, buf[cut:have])
	}
}

// finish writes the last output of a stream.
func (w *Writer) finish(stream Stream, p []byte) {
	w.append(stream, p)
	w.mu.Lock()
	open := w.open[stream.index()]
	w.mu.Unlock()
	if open {
		w.append(stream, []byte{'\n'})
	}
}

// writable is how much of b can be written now: whole lines, and whole parts of the line
// after them.
func writable(b []byte) int {
	lines := bytes.LastIndexByte(b, '\n') + 1
	return lines + (len(b)-lines)/maxPart*maxPart
}

// partReader sets the deadline by which an unfinished line must continue.
type partReader struct {
	deadlines deadliner // nil if the reader has none
	set       bool
}

type deadliner interface{ SetReadDeadline(t time.Time) error }

func newPartReader(r io.Reader) *partReader {
	d, ok := r.(deadliner)
	if !ok || d.SetReadDeadline(time.Time{}) != nil {
		return &partReader{}
	}
	return &partReader{deadlines: d}
}

// limit prepares the next read: without a deadline unless output is waiting, with a new one
// if it has just begun to wait, else with the current one.
func (p *partReader) limit(waiting, fresh bool) error {
	if p.deadlines == nil || !waiting && !p.set || waiting && p.set && !fresh {
		return nil
	}
	var deadline time.Time
	if waiting {
		deadline = time.Now().Add(partWait)
	}
	p.set = waiting
	return p.deadlines.SetReadDeadline(deadline)
}
