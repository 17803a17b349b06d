package logfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/retentionclock"
)

// batchBytes is how many bytes of records are written at once.
const batchBytes = 64 << 10

// maxStepBack is how far the clock may be set back before timestamps follow: up to that
// they stand still until the clock has caught up. A clock that was further ahead would stop
// them for long, so they go back with it.
const maxStepBack = time.Second

// WriterOptions configures a [Writer].
type WriterOptions struct {
	Limits Limits
	// Now is the clock that stamps records; time.Now if nil.
	Now func() time.Time
	// Uptime distinguishes a clock that was set from time that has passed; the time since
	// Open if nil.
	Uptime func() time.Duration
	// Boot identifies the machine's boot; the kernel's boot id if empty.
	Boot string
}

// Writer appends to a log. It is safe for concurrent use.
type Writer struct {
	dir    string
	limits Limits
	now    func() time.Time
	uptime func() time.Duration
	steady *retentionclock.Clock // a clock that is set forward must not make every file look old

	boot string
	log  uint32 // the same in all headers of this log

	mu      sync.Mutex
	closed  bool
	file    *os.File  // nil until there is something to write
	seq     uint64    // the highest number seen or used
	skipped [2]uint64 // the numbers around those that were skipped when the machine was restarted
	head    int64     // length of file's header
	size    int64     // of file, up to the last complete record
	started time.Time
	last    time.Time // timestamp of the last record in file
	older   []olderFile
	open    [2]bool // by stream: the last record was a part of a line
	out     []byte
	lost    loss
}

// olderFile is a complete file.
type olderFile struct {
	seq  uint64
	last time.Time
	size int64 // of its records
}

// loss is what could not be written and is not recorded in the log yet.
type loss struct {
	lines, bytes int64
	cause        error
}

func (l loss) isNothing() bool { return l.lines == 0 && l.bytes == 0 }

// Open creates the directory if necessary and returns a writer that continues after the
// last one, however that ended. A full disk is no error: what does not fit is dropped, as
// at any later time.
func Open(dir string, opts WriterOptions) (*Writer, error) {
	if err := opts.Limits.validate(); err != nil {
		return nil, fmt.Errorf("open log %s: %w", dir, err)
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Uptime == nil {
		opened := time.Now()
		opts.Uptime = func() time.Duration { return time.Since(opened) }
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	seqs, err := listFiles(dir)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	if opts.Boot == "" {
		opts.Boot = currentBoot()
	}
	w := &Writer{dir: dir, limits: opts.Limits.withDefaults(), now: opts.Now, uptime: opts.Uptime, boot: opts.Boot}
	w.steady = retentionclock.At(w.now().Round(0).Add(-w.uptime()))
	for i, seq := range seqs {
		w.seq = seq
		if i < len(seqs)-1 || !w.resume(seq) {
			w.older = append(w.older, w.examine(seq))
		}
	}
	if w.log == 0 {
		w.log = newID()
	}
	return w, nil
}

// resume continues an existing file. It reports false if that is impossible, for example
// because another writer still has it; then the next file takes its place. So it does after
// a restart of the machine: records that were read but had not reached the disk are gone
// then, and a reader that resumes after them would mistake new ones in their place for
// them.
func (w *Writer) resume(seq uint64) bool {
	f, err := os.OpenFile(filePath(w.dir, seq), os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return false
	}
	if !claim(f) {
		f.Close()
		return false
	}
	h, head := readHeader(f)
	if h.boot == "" || h.boot != w.boot {
		lostHeader := h.boot == "" && w.log != 0 && firstStamp(f).IsZero() // files of older releases begin with a timestamp
		f.Close()
		if h.boot != "" || lostHeader {
			w.skipped = [2]uint64{seq, seq + bootStep}
			w.seq = seq + bootStep - 1
		}
		return false
	}
	last, end, err := lastStamp(f)
	if err == nil {
		// A torn record would be glued to the next one.
		err = f.Truncate(end)
	}
	if err != nil {
		f.Close()
		return false
	}
	w.file, w.head, w.size, w.started, w.last, w.log = f, head, end, firstStamp(f), last, h.log
	return true
}

// examine reads a complete file. An unreadable one counts as old, so that its age is no
// reason to keep it.
func (w *Writer) examine(seq uint64) olderFile {
	about := olderFile{seq: seq}
	f, err := os.Open(filePath(w.dir, seq))
	if err != nil {
		return about
	}
	defer f.Close()
	h, head := readHeader(f)
	if h.log != 0 {
		w.log = h.log
	}
	last, end, err := lastStamp(f)
	if err != nil {
		return about
	}
	about.last, about.size = last, end-head
	return about
}

// Close ends the log. Later output is dropped.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	if !w.lost.isNothing() {
		w.prepare() // records the loss, if there is room now
	}
	w.closed = true
	if w.file == nil {
		return nil
	}
	if err := w.file.Close(); err != nil {
		return fmt.Errorf("close log: %w", err)
	}
	return nil
}

// append writes output of a stream: lines, and after the last newline the part of a line
// that continues in the next call.
func (w *Writer) append(stream Stream, p []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(p) > 0 && !w.closed {
		stamp, ready := w.prepare()
		p = w.fill(stream, stamp, p)
		if !ready {
			w.lose(stream, w.out, w.lost.cause)
			continue
		}
		if err := w.flush(stream); err == nil {
			w.last = stamp
		}
	}
}

// prepare ensures that there is a file with room, and returns the timestamp for the next
// batch. It reports false if nothing can be written now.
func (w *Writer) prepare() (stamp time.Time, ready bool) {
	now := w.now().UTC() // without its monotonic part, which a clock change does not affect
	date := w.steady.Look(now, w.uptime())
	if date.Before(w.started) {
		w.started = date // the clock was ahead: its time then is no age
	}
	if w.isDue(date) {
		if err := w.nextFile(date); err != nil {
			w.lost.cause = err
			return now, false
		}
	}
	for len(w.older) > 0 && w.tooMuch() {
		w.removeOldest()
	}
	if now.Before(w.last) && w.last.Sub(now) <= maxStepBack {
		now = w.last
	}
	return now, w.admitLoss()
}

// isDue reports whether the next file must be started.
func (w *Writer) isDue(date time.Time) bool {
	size := w.size - w.head
	if w.file == nil || size >= w.limits.MaxFileBytes {
		return true
	}
	// A quarter: files go one by one, and with five of them nothing goes early.
	return w.limits.MaxAge > 0 && size > 0 && date.Sub(w.started) > w.limits.MaxAge/4
}

// nextFile replaces the current file by a new one.
func (w *Writer) nextFile(date time.Time) error {
	w.retire()
	w.prune(date)
	for seq := w.seq + 1; ; seq++ {
		f, head, err := w.createFile(seq)
		if errors.Is(err, os.ErrExist) {
			continue // of another writer that has not ended yet
		}
		if err != nil {
			return err
		}
		w.seq, w.file, w.started, w.head, w.size = seq, f, date, head, head
		return nil
	}
}

// createFile creates the file with that number and returns the length of its header. The
// file gets its name once the header is on disk. If readers saw a file whose header did not
// fit, they would keep it open while the next attempt replaces it.
func (w *Writer) createFile(seq uint64) (_ *os.File, head int64, err error) {
	unnamed := filepath.Join(w.dir, fmt.Sprintf("%08x.new", newID()))
	f, err := os.OpenFile(unnamed, os.O_CREATE|os.O_EXCL|os.O_RDWR|os.O_APPEND, 0o640)
	if err != nil {
		return nil, 0, err
	}
	defer os.Remove(unnamed)
	claim(f) // no other process knows it yet
	h := header{log: w.log, epoch: newID(), prev: seq - 1, boot: w.boot}
	if seq == w.skipped[1] {
		h.prev = w.skipped[0]
	}
	n, err := f.Write(h.line())
	if err == nil && seq == w.skipped[1] {
		err = f.Sync()
	}
	if err == nil {
		err = os.Link(unnamed, filePath(w.dir, seq))
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	if seq == w.skipped[1] {
		w.syncFolder()
	}
	return f, int64(n), nil
}

// syncFolder makes the first file after a restart of the machine survive the next crash. If it could be lost, the
// writer after that crash would skip to the same number, and a reader would take its files for those that it has read.
func (w *Writer) syncFolder() {
	folder, err := os.Open(w.dir)
	if err != nil {
		return
	}
	_ = folder.Sync() // the log goes on without it
	folder.Close()
}

// retire completes the current file.
func (w *Writer) retire() {
	if w.file == nil {
		return
	}
	w.older = append(w.older, olderFile{w.seq, w.last, w.size - w.head})
	w.file.Close() // every write error has already been reported
	w.file, w.head, w.size, w.last = nil, 0, 0, time.Time{}
}

// spareFiles is by how much the number of files may exceed its limit. Restarts of the
// machine and the age limit end files that are far from full.
const spareFiles = 16

// tooMuch reports whether there are more files than the limits allow, counting
// several small ones as one.
func (w *Writer) tooMuch() bool {
	full := w.limits.MaxFileBytes
	used := min(w.size-w.head, full)
	for _, older := range w.older {
		used += min(older.size, full)
	}
	return used/full >= int64(w.limits.MaxFiles) || len(w.older) >= w.limits.MaxFiles+spareFiles
}

// prune removes the files that are too old, and makes room for one more.
func (w *Writer) prune(date time.Time) {
	for len(w.older) > 0 {
		tooOld := w.limits.MaxAge > 0 && date.Sub(w.older[0].last) > w.limits.MaxAge
		if !tooOld && !w.tooMuch() {
			return
		}
		w.removeOldest()
	}
}

// removeOldest tries once: a file that cannot be removed now will not be removable with the
// next batch either; the next writer tries again.
func (w *Writer) removeOldest() {
	_ = os.Remove(filePath(w.dir, w.older[0].seq))
	w.older = w.older[1:]
}

// fill turns output into a batch of records and returns what did not fit.
func (w *Writer) fill(stream Stream, stamp time.Time, p []byte) (rest []byte) {
	w.out = stamp.AppendFormat(w.out[:0], stampLayout)
	head := string(w.out)
	w.out = w.out[:0]
	open := &w.open[stream.index()]
	for len(p) > 0 && len(w.out) < batchBytes {
		line, after, ends := cutPart(p)
		w.out = append(w.out, head...)
		w.out = record{stream: stream, begins: !*open, ends: ends, line: line}.appendRest(w.out)
		*open = !ends
		p = after
	}
	return p
}

// flush writes the batch. It counts what cannot be written as lost, and truncates a partial
// write to the last complete record.
func (w *Writer) flush(stream Stream) error {
	n, err := w.file.Write(w.out)
	if err == nil {
		w.size += int64(n)
		return nil
	}
	kept := wholeRecords(w.out[:n])
	w.size += int64(kept)
	if truncErr := w.file.Truncate(w.size); truncErr != nil {
		w.retire() // nothing may follow a partial record in the same file
	}
	w.lose(stream, w.out[kept:], err)
	return err
}

// lose counts records that were not written.
func (w *Writer) lose(stream Stream, records []byte, cause error) {
	lines, bytes := measure(records)
	w.lost.lines += lines
	w.lost.bytes += bytes
	w.lost.cause = cause
	w.open[stream.index()] = false
}

// admitLoss records in the log what was lost, if anything, and reports whether the log is
// usable.
func (w *Writer) admitLoss() bool {
	if w.lost.isNothing() {
		return true
	}
	if w.file == nil {
		return false
	}
	stamp := w.now().UTC()
	if stamp.Before(w.last) {
		stamp = w.last
	}
	lost := w.lost
	w.lost = loss{}
	text := fmt.Sprintf("cloudless: %d lines (%d bytes) of output were lost here: %v", lost.lines, lost.bytes, reason(lost.cause))
	w.out = record{time: stamp, stream: Stderr, begins: true, ends: true, line: []byte(text)}.appendTo(w.out[:0])
	w.open[Stderr.index()] = false
	if err := w.flush(Stderr); err != nil {
		lost.cause = err
		w.lost = lost
		return false
	}
	w.last = stamp
	return true
}

// reason is the error without the path, which is useless to readers of a log.
func reason(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}

// claim locks a file for this process until it is closed and reports false if another one
// has it. Two writers can meet in one log when the output of a container outlives the
// container. File systems without locks are trusted.
func claim(f *os.File) bool {
	return !errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}
