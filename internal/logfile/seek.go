package logfile

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// seek moves the cursor to where reading begins by the options and, unless the log is followed, sets where it ends.
func (r *reader) seek(ctx context.Context) error {
	seqs, err := r.files()
	if err != nil {
		return err
	}
	first, end := position{seq: 1}, position{seq: 1}
	if len(seqs) > 0 {
		first.seq, end.seq = seqs[0], seqs[len(seqs)-1]
		if end.offset, err = r.endOf(end.seq); err != nil {
			return err
		}
	}
	if !r.opts.Follow {
		r.to = &end // otherwise a log that is written faster than it is read would never end
	}
	if r.opts.After != nil {
		if err := r.seekAfter(seqs); err != nil {
			return err
		}
		return r.begin(*r.opts.After)
	}
	if !r.opts.Since.IsZero() {
		r.old = end
		if first, err = r.seekSince(ctx, first, end); err != nil {
			return err
		}
	}
	if err := r.seekTail(seqs, first, end); err != nil {
		return err
	}
	r.head = headerOf(r.dir, r.at.seq)
	return r.begin(r.position(r.at))
}

func (r *reader) begin(at Position) error {
	r.said = at
	if !r.opts.Begin {
		return nil
	}
	return r.fn(Entry{Begin: true, Position: at})
}

// endOf is the offset after the last complete record of a file, 0 if the file is missing.
func (r *reader) endOf(seq uint64) (int64, error) {
	f, err := os.Open(filePath(r.dir, seq))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read log: %w", err)
	}
	defer f.Close()
	return wholeEnd(f)
}

// wholeEnd is the offset after the last newline of a file.
func wholeEnd(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("read log: %w", err)
	}
	end, err := readBackward(f, info.Size(), func(int64, []byte) bool { return false })
	if err != nil && !errors.Is(err, errRecord) {
		return 0, fmt.Errorf("read log: %w", err)
	}
	return end, nil
}

// errFound ends a search.
var errFound = errors.New("found")

// seekSince is the first record that is not older than Options.Since, or the end if there is none.
func (r *reader) seekSince(ctx context.Context, first, end position) (position, error) {
	since := r.opts.Since.UTC().Format(stampLayout)
	search := &reader{dir: r.dir, at: first, to: &end, buf: r.buf}
	defer search.closeFile()
	search.visit = func(line []byte) error {
		if len(line) < len(since) || string(line[:len(since)]) < since { // timestamps compare as text
			return nil
		}
		if _, err := parseRecord(line); err != nil {
			return nil
		}
		return errFound
	}
	err := search.drain(ctx)
	if errors.Is(err, errFound) {
		return search.at, nil
	}
	return end, err
}

// seekAfter resumes after Options.After. What was lost since then is noted as missed.
func (r *reader) seekAfter(seqs []uint64) error {
	for s, place := range []Place{r.opts.After.Stdout, r.opts.After.Stderr} {
		at, head, intact, err := r.locate(place, seqs)
		if err != nil {
			return err
		}
		r.from[s], r.fromHead[s], r.open[s] = at, head, place.Open
		r.missed = r.missed || !intact
	}
	earlier := 0
	if r.from[1].before(r.from[0]) {
		earlier = 1
	}
	r.at, r.head = r.from[earlier], r.fromHead[earlier]
	return nil
}

// locate finds a place again, or where reading continues if what was read there is no longer in the log. openNext
// handles a missing file.
func (r *reader) locate(place Place, seqs []uint64) (at position, head header, intact bool, err error) {
	head = header{log: place.Log, epoch: place.Epoch}
	if r.isAnew(seqs, place.Log) {
		return position{seq: seqs[0]}, headerOf(r.dir, seqs[0]), false, nil
	}
	f, err := os.Open(filePath(r.dir, place.File))
	if errors.Is(err, os.ErrNotExist) {
		return place.at(), head, true, nil
	}
	if err != nil {
		return position{}, header{}, false, fmt.Errorf("read log: %w", err)
	}
	defer f.Close()
	found, _ := readHeader(f)
	head.epoch = found.epoch
	if place.Offset == 0 {
		return place.at(), head, true, nil
	}
	if found.epoch != place.Epoch {
		return position{seq: place.File}, head, false, nil
	}
	end, err := wholeEnd(f)
	if err != nil {
		return position{}, header{}, false, err
	}
	if place.Offset > end {
		return position{place.File, end}, head, false, nil
	}
	return place.at(), head, true, nil
}

// position is the place after what has been read so far, with the identity of its file.
func (r *reader) position(behind position) Position {
	return Position{r.place(0, behind), r.place(1, behind)}
}

func (r *reader) place(s int, behind position) Place {
	at, head := behind, r.head
	if behind.before(r.from[s]) {
		at, head = r.from[s], r.fromHead[s]
	}
	return Place{File: at.seq, Offset: at.offset, Log: head.log, Epoch: head.epoch, Open: r.open[s]}
}
