package logfile

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// openLog is a writer that is closed when the test ends.
func openLog(t testing.TB, dir string, opts WriterOptions) *Writer {
	t.Helper()
	w, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

// write pumps text into a stream of the log.
func write(t testing.TB, w *Writer, stream Stream, text string) {
	t.Helper()
	if err := w.Pump(stream, strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
}

// all is everything that is in the log now.
func all(t testing.TB, dir string) []Entry {
	t.Helper()
	return read(t, dir, Options{Tail: -1})
}

func read(t testing.TB, dir string, opts Options) []Entry {
	t.Helper()
	var entries []Entry
	err := Read(context.Background(), dir, opts, func(e Entry) error {
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// join joins the parts of lines and marks the streams: "stdout: one".
func join(entries []Entry) []string {
	lines := []string{}
	var parts [2]strings.Builder
	for _, e := range entries {
		if e.Gap {
			lines = append(lines, "gap")
			continue
		}
		b := &parts[e.Stream.index()]
		b.WriteString(e.Line)
		if !e.Partial {
			lines = append(lines, string(e.Stream)+": "+b.String())
			b.Reset()
		}
	}
	return lines
}

// clock is a clock that is set by hand.
type clock struct {
	time.Time
	up time.Duration
}

func newClock() *clock                 { return &clock{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }
func (c *clock) now() time.Time        { return c.Time }
func (c *clock) uptime() time.Duration { return c.up }
func (c *clock) jump(d time.Duration)  { c.Time = c.Add(d) }
func (c *clock) add(d time.Duration)   { c.jump(d); c.up += d }

func logFiles(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func equal(t *testing.T, got, want []string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") || len(got) != len(want) {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func TestRecordsOnDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "by", "the", "writer")
	w := openLog(t, dir, WriterOptions{Now: newClock().now})
	write(t, w, Stdout, "one\n\ntwo\n")
	write(t, w, Stderr, "no newline at the end")
	write(t, w, Stdout, "")
	got, err := os.ReadFile(filepath.Join(dir, "00000001.log"))
	if err != nil {
		t.Fatal(err)
	}
	head, got, _ := bytes.Cut(got, []byte("\n"))
	if h, ok := parseHeader(head); !ok || h.log == 0 || h.epoch == 0 || h.boot != currentBoot() {
		t.Errorf("the file begins with %q", head)
	}
	want := `2026-01-02T03:04:05.000000000Z stdout F one
2026-01-02T03:04:05.000000000Z stdout F 
2026-01-02T03:04:05.000000000Z stdout F two
2026-01-02T03:04:05.000000000Z stderr P no newline at the end
2026-01-02T03:04:05.000000000Z stderr f 
`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestLongLineIsSplitAndJoined(t *testing.T) {
	const size = 50 << 20
	dir := t.TempDir()
	w := openLog(t, dir, WriterOptions{Limits: Limits{MaxFileBytes: 1 << 20, MaxFiles: 1000}})
	line := io.LimitReader(&pattern{}, size)
	if err := w.Pump(Stdout, line); err != nil {
		t.Fatal(err)
	}
	var n, ends int
	for _, e := range all(t, dir) {
		if len(e.Line) > maxPart {
			t.Fatalf("a part of %d bytes", len(e.Line))
		}
		if e.Line != patternText[n%26:][:len(e.Line)] {
			t.Fatalf("the part at %d is wrong", n)
		}
		n += len(e.Line)
		if !e.Partial {
			ends++
		}
	}
	if n != size || ends != 1 {
		t.Errorf("%d bytes in %d lines, want %d in one", n, ends, size)
	}
	if got := read(t, dir, Options{Tail: 1}); len(join(got)[0]) != size+len("stdout: ") {
		t.Errorf("the tail of one line has %d bytes of it", len(join(got)[0]))
	}
}

// pattern is an endless line without a newline.
type pattern struct{ n int }

var patternText = strings.Repeat("abcdefghijklmnopqrstuvwxyz", 4<<10)

func (p *pattern) Read(b []byte) (int, error) {
	n := copy(b, patternText[p.n%26:])
	p.n += n
	return n, nil
}

func TestRotationBySizeKeepsTheNewest(t *testing.T) {
	dir := t.TempDir()
	w := openLog(t, dir, WriterOptions{Limits: Limits{MaxFileBytes: 100, MaxFiles: 3}})
	for _, line := range strings.SplitAfter("one two three four five six seven eight nine ten eleven", " ") {
		write(t, w, Stdout, strings.TrimSpace(line)+"\n")
	}
	equal(t, logFiles(t, dir), []string{"00000002.log", "00000003.log", "00000004.log"})
	equal(t, join(all(t, dir)), []string{
		"stdout: four", "stdout: five", "stdout: six", "stdout: seven",
		"stdout: eight", "stdout: nine", "stdout: ten", "stdout: eleven",
	})
}

func TestRotationByAge(t *testing.T) {
	dir := t.TempDir()
	c := newClock()
	opts := WriterOptions{Now: c.now, Uptime: c.uptime, Limits: Limits{MaxAge: 4 * time.Hour, MaxFiles: 100}}
	w := openLog(t, dir, opts)
	for _, hour := range []string{"0", "1", "2", "3", "4", "5", "6"} {
		write(t, w, Stdout, hour+"\n")
		c.add(time.Hour + time.Second)
	}
	equal(t, join(all(t, dir)), []string{"stdout: 3", "stdout: 4", "stdout: 5", "stdout: 6"})

	// A writer that is opened later knows the age of the files.
	w.Close()
	c.add(90 * time.Minute)
	write(t, openLog(t, dir, opts), Stdout, "later\n")
	equal(t, join(all(t, dir)), []string{"stdout: 5", "stdout: 6", "stdout: later"})
}

// If the clock is set back a little, timestamps wait for it, so that they stay in order. If
// it was far ahead, it is trusted when it is right again, also by the next writer, and its
// files do not age by that.
func TestClockSetBack(t *testing.T) {
	dir := t.TempDir()
	c := newClock()
	start := c.Time
	opts := WriterOptions{Now: c.now, Uptime: c.uptime, Limits: Limits{MaxAge: 4 * time.Hour}}
	w := openLog(t, dir, opts)
	write(t, w, Stdout, "one\n")
	c.jump(-time.Second)
	write(t, w, Stdout, "waits\n")
	c.jump(time.Second - 24*time.Hour)
	write(t, w, Stdout, "two\n")
	w.Close()
	c.add(time.Minute)
	w = openLog(t, dir, opts)
	write(t, w, Stdout, "three\n")
	c.add(2 * time.Hour)
	write(t, w, Stdout, "four\n")
	day := start.Add(-24 * time.Hour)
	for i, want := range []time.Time{start, start, day, day.Add(time.Minute), day.Add(2*time.Hour + time.Minute)} {
		if e := all(t, dir)[i]; !e.Time.Equal(want) {
			t.Errorf("%s has the time %s, want %s", e.Line, e.Time, want)
		}
	}
	equal(t, logFiles(t, dir), []string{"00000001.log", "00000002.log"})
	equal(t, join(read(t, dir, Options{Tail: -1, Since: day.Add(time.Second), Until: day.Add(time.Hour)})), []string{"stdout: three"})
	equal(t, join(read(t, dir, Options{Tail: 2, Until: day.Add(24*time.Hour - 1)})), []string{"stdout: three", "stdout: four"})
}

// A clock that is set forward makes nothing old: earlier output is still there when the
// clock is corrected, and is removed when the new date has lasted.
func TestClockSetForward(t *testing.T) {
	dir := t.TempDir()
	c := newClock()
	w := openLog(t, dir, WriterOptions{Now: c.now, Uptime: c.uptime, Limits: Limits{MaxAge: 4 * time.Hour, MaxFiles: 100}})
	write(t, w, Stdout, "before\n")
	c.jump(1000 * time.Hour)
	for range 3 {
		c.add(10 * time.Minute)
		write(t, w, Stdout, "ahead\n")
	}
	if last := all(t, dir)[3]; !last.Time.Equal(c.Time) {
		t.Errorf("a line has the time %s, want that of the clock, %s", last.Time, c.Time)
	}
	c.jump(-1000 * time.Hour)
	write(t, w, Stdout, "right\n")
	equal(t, join(all(t, dir)), []string{"stdout: before", "stdout: ahead", "stdout: ahead", "stdout: ahead", "stdout: right"})

	c.jump(1000 * time.Hour)
	write(t, w, Stdout, "again\n")
	c.add(5 * time.Hour)
	write(t, w, Stdout, "believed\n")
	equal(t, join(all(t, dir)), []string{"stdout: believed"})
}

func TestTornRecordIsTruncated(t *testing.T) {
	whole := "2026-01-02T03:04:05.000000000Z stdout F whole\n"
	torn := "2026-01-02T03:04:05.000000000Z stdout F torn"
	for n := range len(torn) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "00000007.log"), []byte(whole+torn[:n]), 0o600); err != nil {
			t.Fatal(err)
		}
		equal(t, join(all(t, dir)), []string{"stdout: whole"})
		write(t, openLog(t, dir, WriterOptions{}), Stdout, "next\n")
		equal(t, join(all(t, dir)), []string{"stdout: whole", "stdout: next"})
	}
}

func TestUnfinishedLineIsNotJoinedToTheNext(t *testing.T) {
	dir := t.TempDir()
	killed := openLog(t, dir, WriterOptions{})
	killed.append(Stdout, []byte("half of a li"))
	killed.file.Close()
	write(t, openLog(t, dir, WriterOptions{}), Stdout, "next\n")
	equal(t, join(all(t, dir)), []string{"stdout: half of a li", "stdout: next"})
	equal(t, join(read(t, dir, Options{Tail: 1})), []string{"stdout: next"})
}

func TestTwoWritersDoNotShareAFile(t *testing.T) {
	dir := t.TempDir()
	old := openLog(t, dir, WriterOptions{Limits: Limits{MaxFileBytes: 1}})
	write(t, old, Stdout, "old 1\n")
	newer := openLog(t, dir, WriterOptions{})
	write(t, newer, Stdout, "new 1\n")
	write(t, old, Stdout, "old 2\n")
	write(t, newer, Stdout, "new 2\n")
	equal(t, logFiles(t, dir), []string{"00000001.log", "00000002.log", "00000003.log"})
	equal(t, join(all(t, dir)), []string{"stdout: old 1", "stdout: new 1", "stdout: new 2", "stdout: old 2"})
}

func TestForeignFilesAndLinesAreIgnored(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"notes.txt":     "keep me",
		"1.log":         "2026-01-02T03:04:05.000000000Z stdout F wrong name\n",
		"00000001.log":  "garbage\n\n" + strings.Repeat("x", 300<<10) + "\n2026-01-02T03:04:05.000000000Z stdout F right\n",
		"00000000.log":  "2026-01-02T03:04:05.000000000Z stdout F zero\n",
		"x00000001.log": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	equal(t, join(all(t, dir)), []string{"stdout: right"})
	equal(t, join(read(t, dir, Options{Tail: 10})), []string{"stdout: right"})
	w := openLog(t, dir, WriterOptions{Limits: Limits{MaxFiles: 1, MaxFileBytes: 1}})
	write(t, w, Stdout, "new\n")
	equal(t, logFiles(t, dir), []string{"00000000.log", "00000002.log", "1.log", "notes.txt", "x00000001.log"})
}

func TestReadErrorIsReported(t *testing.T) {
	broken := errors.New("broken")
	dir := t.TempDir()
	w := openLog(t, dir, WriterOptions{})
	r := io.MultiReader(bytes.NewReader([]byte("before")), errReader{broken})
	if err := w.Pump(Stdout, r); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	equal(t, join(all(t, dir)), []string{"stdout: before"})
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

func TestLimitsAreChecked(t *testing.T) {
	for _, limits := range []Limits{{MaxFileBytes: -1}, {MaxFiles: -1}, {MaxAge: -1}} {
		if _, err := Open(t.TempDir(), WriterOptions{Limits: limits}); err == nil {
			t.Errorf("%+v was accepted", limits)
		}
	}
}
