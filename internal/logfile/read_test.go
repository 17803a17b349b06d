package logfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTail(t *testing.T) {
	dir := t.TempDir()
	w := openLog(t, dir, WriterOptions{Limits: Limits{MaxFileBytes: 150, MaxFiles: 100}})
	write(t, w, Stdout, "1\n2\n3\n")
	write(t, w, Stderr, "4\n5\n")
	w.append(Stdout, []byte("6 begins, "))
	write(t, w, Stderr, "7\n")
	w.append(Stderr, []byte("8 begins, "))
	w.append(Stdout, []byte("6 goes on, "))
	write(t, w, Stdout, "6 ends\n")
	w.append(Stderr, []byte("8 waits"))

	lines := []string{
		"stdout: 1", "stdout: 2", "stdout: 3", "stderr: 4", "stderr: 5", "stderr: 7",
		"stdout: 6 begins, 6 goes on, 6 ends", "stderr: 8 begins, 8 waits",
	}
	// Lines in the order in which they end; what is unfinished is the last.
	for n := range len(lines) + 2 {
		entries := read(t, dir, Options{Tail: n})
		entries = append(entries, Entry{Stream: Stderr}) // ends what is unfinished
		got := join(entries)
		if n == 0 {
			equal(t, got, []string{"stderr: "})
			continue
		}
		equal(t, got, lines[max(0, len(lines)-n):])
	}
}

func TestTailOfALargeLogReadsLittle(t *testing.T) {
	dir := t.TempDir()
	w := openLog(t, dir, WriterOptions{})
	write(t, w, Stderr, "long ago\n")
	write(t, w, Stdout, strings.Repeat("line\n", 100_000))
	info, err := os.Stat(filepath.Join(dir, "00000001.log"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(dir, "00000001.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	counted := &countingReaderAt{ReaderAt: f}
	last := &tail{remaining: 20}
	_, err = readBackward(counted, info.Size(), func(offset int64, line []byte) bool {
		return last.visit(position{1, offset}, line)
	})
	if err != nil {
		t.Fatal(err)
	}
	if counted.bytes > backwardBlock {
		t.Errorf("read %d of %d bytes for 20 lines", counted.bytes, info.Size())
	}
	if got := len(read(t, dir, Options{Tail: 20})); got != 20 {
		t.Errorf("got %d lines, want 20", got)
	}
}

type countingReaderAt struct {
	io.ReaderAt
	bytes int
}

func (c *countingReaderAt) ReadAt(b []byte, offset int64) (int, error) {
	c.bytes += len(b)
	return c.ReaderAt.ReadAt(b, offset)
}

// Output that is written while the tail is searched for is not part of it, unless the log is followed.
func TestTailIgnoresLaterLines(t *testing.T) {
	for follow, want := range map[bool][]string{false: {"two"}, true: {"two", "three"}} {
		dir := t.TempDir()
		w := openLog(t, dir, WriterOptions{})
		// lastLine is the last line of the log, while another one is written.
		lastLine := func(meanwhile string) (got []string) {
			r := &reader{dir: dir, opts: Options{Tail: 1, Follow: follow}, buf: make([]byte, readBytes), fn: func(e Entry) error {
				got = append(got, e.Line)
				return nil
			}}
			defer r.closeFile()
			err := r.seek(t.Context())
			write(t, w, Stdout, meanwhile+"\n")
			if err := errors.Join(err, r.drain(t.Context())); err != nil {
				t.Fatal(err)
			}
			return got
		}
		if got := lastLine("two"); !follow && len(got) > 0 {
			t.Errorf("an empty log has the lines %q", got)
		}
		equal(t, lastLine("three"), want)
	}
}

// A program may print faster than its log is read: without Follow, a reader gets what was there, and an end.
func TestReadEndsWhileTheLogGrows(t *testing.T) {
	for about, tail := range map[string]int{"all": -1, "the last lines": 3} {
		dir := t.TempDir()
		w := openLog(t, dir, WriterOptions{Limits: Limits{MaxFileBytes: 100, MaxFiles: 100}})
		write(t, w, Stdout, "1\n2\n3\n")
		var got []string
		err := Read(t.Context(), dir, Options{Tail: tail}, func(e Entry) error {
			write(t, w, Stdout, "more\nand more\n")
			if got = append(got, e.Line); len(got) > 3 {
				return errors.New("it goes on and on")
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", about, err)
		}
		equal(t, got, []string{"1", "2", "3"})
	}
}

// Later output is not even read only to be skipped, which would never end either.
func TestReadDoesNotReadLaterOutput(t *testing.T) {
	dir := t.TempDir()
	w := openLog(t, dir, WriterOptions{Limits: Limits{MaxFileBytes: 100, MaxFiles: 100}})
	write(t, w, Stdout, "1\n")
	r := &reader{dir: dir, opts: Options{Tail: 1}, buf: make([]byte, readBytes), fn: func(Entry) error { return nil }}
	defer r.closeFile()
	err := r.seek(t.Context())
	for range 10 {
		write(t, w, Stdout, strings.Repeat("later", 20)+"\n")
	}
	if err := errors.Join(err, r.drain(t.Context())); err != nil {
		t.Fatal(err)
	}
	if next := (position{seq: r.to.seq + 1}); next.before(r.at) {
		t.Errorf("read up to %+v, though the end was at %+v", r.at, *r.to)
	}
}

// A log that is written faster than it is read loses its oldest files. The reader gets one gap for everything that is
// missing there.
func TestReaderGetsAGapForRemovedFiles(t *testing.T) {
	for name, opts := range map[string]Options{"followed": {Tail: -1, Follow: true}, "read": {Tail: -1}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			w := openLog(t, dir, WriterOptions{Limits: Limits{MaxFileBytes: 70, MaxFiles: 2}})
			number := 0
			more := func(count int) {
				for range count {
					number++
					write(t, w, Stdout, fmt.Sprintf("%d\n", number))
				}
			}
			more(3)
			done := make(chan struct{})
			opts.Done = done
			var entries []Entry
			err := Read(t.Context(), dir, opts, func(e Entry) error {
				if entries = append(entries, e); len(entries) == 1 {
					more(9)
					close(done)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			// Nothing is missing from the file that is being read.
			want := []string{"stdout: 1", "stdout: 2", "gap"}
			if opts.Follow {
				want = append(want, join(all(t, dir))...)
			}
			equal(t, join(entries), want)
		})
	}
}

func TestSinceAndUntil(t *testing.T) {
	dir := t.TempDir()
	c := newClock()
	start := c.Time
	w := openLog(t, dir, WriterOptions{Now: c.now, Limits: Limits{MaxFileBytes: 100, MaxFiles: 100}})
	for minute := range 6 {
		write(t, w, Stdout, fmt.Sprintf("%d\n", minute))
		c.add(time.Minute)
	}
	at := func(minute int) time.Time { return start.Add(time.Duration(minute) * time.Minute) }
	tests := []struct {
		opts Options
		want string
	}{
		{Options{Tail: -1}, "0 1 2 3 4 5"},
		{Options{Tail: -1, Since: at(4)}, "4 5"},
		{Options{Tail: -1, Until: at(2)}, "0 1 2"},
		{Options{Tail: -1, Since: at(1).Add(1), Until: at(4).Add(-1)}, "2 3"},
		{Options{Tail: 1, Since: at(1), Until: at(3)}, "3"},
		{Options{Tail: 9, Since: at(1), Until: at(3)}, "1 2 3"},
		{Options{Tail: 9, Since: at(9)}, ""},
		{Options{Tail: 2, Until: at(-1)}, ""},
		{Options{Tail: -1, Follow: true, Until: at(2)}, "0 1 2"}, // which has passed
	}
	for _, test := range tests {
		var got []string
		for _, e := range read(t, dir, test.opts) {
			got = append(got, e.Line)
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%+v: got %q, want %q", test.opts, got, test.want)
		}
	}
}

func TestMissingLogIsEmpty(t *testing.T) {
	if got := all(t, filepath.Join(t.TempDir(), "nothing")); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

func TestReadStopsOnACallbackError(t *testing.T) {
	dir := t.TempDir()
	write(t, openLog(t, dir, WriterOptions{}), Stdout, "1\n2\n")
	enough := errors.New("enough")
	calls := 0
	err := Read(t.Context(), dir, Options{Tail: -1, Follow: true}, func(Entry) error {
		calls++
		return enough
	})
	if err != enough || calls != 1 {
		t.Errorf("got %v after %d calls", err, calls)
	}
}

// follow reads a log in the background; entries are what it delivers.
func follow(t *testing.T, dir string, opts Options) (entries <-chan Entry, result <-chan error) {
	t.Helper()
	delivered, done := make(chan Entry), make(chan error, 1)
	opts.Follow = true
	go func() {
		defer close(delivered)
		done <- Read(t.Context(), dir, opts, func(e Entry) error {
			select {
			case delivered <- e:
				return nil
			case <-t.Context().Done():
				return t.Context().Err()
			}
		})
	}()
	return delivered, done
}

func TestFollowWaitsForTheLog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b", "c")
	finished := make(chan struct{})
	entries, result := follow(t, dir, Options{Tail: 1 << 30, Done: finished})
	w := openLog(t, dir, WriterOptions{})
	write(t, w, Stdout, "1\n")
	if e := <-entries; e.Line != "1" {
		t.Errorf("got %+v", e)
	}
	write(t, w, Stderr, "2\n")
	if e := <-entries; e.Line != "2" || e.Stream != Stderr {
		t.Errorf("got %+v", e)
	}
	write(t, w, Stdout, "3\n")
	close(finished)
	if e := <-entries; e.Line != "3" {
		t.Errorf("got %+v", e)
	}
	if e, ok := <-entries; ok {
		t.Errorf("got %+v after the end", e)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
}

func TestFollowNeverDeliversPartialRecords(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "00000001.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	entries, _ := follow(t, dir, Options{Tail: -1})
	text := "2026-01-02T03:04:05.000000000Z stdout F slow\n"
	for range 3 {
		for i := range len(text) {
			if _, err := f.WriteString(text[i : i+1]); err != nil {
				t.Fatal(err)
			}
		}
		if e := <-entries; e.Line != "slow" {
			t.Errorf("got %+v", e)
		}
	}
}

// A file that was removed and created again under the same number is another file. The reader opens it, and reports a
// gap if it had read from the one before.
func TestReaderOpensAReplacedFile(t *testing.T) {
	for name, c := range map[string]struct {
		before string
		want   []string
	}{
		"an empty file":       {"", []string{"stdout: new"}},
		"a file with records": {"2026-01-02T03:04:05.000000000Z stdout F old\n", []string{"stdout: old", "gap", "stdout: new"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filePath(dir, 1)
			if err := os.WriteFile(path, []byte(c.before), 0o600); err != nil {
				t.Fatal(err)
			}
			var got []Entry
			r := &reader{dir: dir, opts: Options{Follow: true, Tail: -1}, buf: make([]byte, readBytes)}
			r.fn = func(e Entry) error {
				got = append(got, e)
				return nil
			}
			defer r.closeFile()
			if err := errors.Join(r.seek(t.Context()), r.drain(t.Context()), os.Remove(path), r.drain(t.Context())); err != nil {
				t.Fatal(err)
			}
			write(t, openLog(t, dir, WriterOptions{}), Stdout, "new\n")
			if err := r.drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			equal(t, join(got), c.want)
		})
	}
}

func TestFollowEndsWhenTheLogIsRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	w := openLog(t, dir, WriterOptions{})
	write(t, w, Stdout, "1\n")
	entries, result := follow(t, dir, Options{Tail: -1})
	<-entries
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	dir := t.TempDir()
	write(t, openLog(t, dir, WriterOptions{}), Stdout, "1\n")
	err := Read(ctx, dir, Options{Tail: -1, Follow: true}, func(Entry) error {
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestFollowEndsAtUntil(t *testing.T) {
	until := time.Now().Add(50 * time.Millisecond)
	if got := read(t, t.TempDir(), Options{Tail: -1, Follow: true, Until: until}); len(got) != 0 {
		t.Errorf("got %v", got)
	}
	if time.Now().Before(until) {
		t.Error("the end came early")
	}
}

// Numbered lines on both streams, while files are started, the writer is killed
// and replaced, and two readers follow: none is missing and none comes twice.
func TestFollowAcrossRotationAndRestarts(t *testing.T) {
	const writers, lines = 8, 5000
	dir := filepath.Join(t.TempDir(), "log")
	finished := make(chan struct{})
	first, firstResult := follow(t, dir, Options{Tail: -1, Done: finished})
	second, secondResult := follow(t, dir, Options{Tail: 1 << 30, Done: finished})
	go func() {
		defer close(finished)
		for i := range writers {
			w, err := Open(dir, WriterOptions{Limits: Limits{MaxFileBytes: 200 << 10, MaxFiles: 1000}})
			if err != nil {
				t.Error(err)
				return
			}
			pumpNumbers(t, w, i*lines, lines)
			w.file.Close() // all that is left of a killed writer
		}
	}()
	secondLines := make(chan []string)
	go func() { secondLines <- collect(second) }()
	checkNumbers(t, collect(first), writers*lines)
	checkNumbers(t, <-secondLines, writers*lines)
	for _, result := range []<-chan error{firstResult, secondResult} {
		if err := <-result; err != nil {
			t.Error(err)
		}
	}
	checkNumbers(t, join(all(t, dir)), writers*lines)
}

// pumpNumbers writes numbers through a pipe for each stream at the same time.
func pumpNumbers(t *testing.T, w *Writer, from, count int) {
	errs := make(chan error)
	for _, stream := range []Stream{Stdout, Stderr} {
		r, pw, err := os.Pipe()
		if err != nil {
			t.Error(err)
			return
		}
		go func() {
			defer pw.Close()
			for i := range count {
				fmt.Fprintf(pw, "%d\n", from+i)
			}
		}()
		go func() {
			defer r.Close()
			errs <- w.Pump(stream, r)
		}()
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func collect(entries <-chan Entry) []string {
	var got []Entry
	for e := range entries {
		got = append(got, e)
	}
	return join(got)
}

func checkNumbers(t *testing.T, lines []string, count int) {
	t.Helper()
	next := map[string]int{}
	for _, line := range lines {
		stream, number, _ := strings.Cut(line, ": ")
		if want := fmt.Sprint(next[stream]); number != want {
			t.Fatalf("%s: got line %s, want %s", stream, number, want)
		}
		next[stream]++
	}
	if next["stdout"] != count || next["stderr"] != count {
		t.Errorf("got %v lines, want %d of each", next, count)
	}
}
