package logfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A log is written, rotated, cut off and damaged in any order while a reader is interrupted again and again. It resumes
// by position each time: no line comes twice, and none is missing unless it is gone from the disk, in which case the
// reader gets a gap.
func TestResumedReaderLosesAndRepeatsNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "log")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		s := newStory(t, filepath.Join(dir, "log"))
		defer func() { s.writer.Close() }()
		t.Repeat(map[string]func(*rapid.T){
			"write a line":      func(t *rapid.T) { s.writeLine(t) },
			"write a part":      func(t *rapid.T) { s.writePart(t) },
			"set the clock":     func(t *rapid.T) { s.clock.jump(time.Duration(rapid.IntRange(-50, 50).Draw(t, "hours")) * time.Hour) },
			"kill the writer":   func(t *rapid.T) { s.killWriter(t) },
			"crash the machine": func(t *rapid.T) { s.crashMachine(t) },
			"remove the log":    func(t *rapid.T) { s.removeLog(t) },
			"read":              func(t *rapid.T) { s.read(t, rapid.IntRange(1, 5).Draw(t, "entries")) },
		})
		s.read(t, -1)
		s.checkEnd(t)
	})
}

// story is a log with everything that was ever written to it, and a reader that comes and goes.
type story struct {
	dir    string
	clock  *clock
	boot   int
	writer *Writer
	begun  [2]bool // by stream: a line was begun and not ended

	written [2]int          // by stream: lines that were begun
	gone    [2]map[int]bool // by stream: lines that are no longer on disk; true if a reader can know that

	after   *Position
	joined  [2]string // by stream: the parts of a line whose end was not read yet
	next    [2]int    // by stream: the number of the line that was begun last, plus one
	told    [2]bool   // by stream: something is missing before the next line
	removed bool      // whether something was ever removed or lost
}

func newStory(t *rapid.T, dir string) *story {
	s := &story{dir: dir, clock: newClock(), gone: [2]map[int]bool{{}, {}}}
	s.open(t)
	begin := Options{Tail: rapid.SampledFrom([]int{-1, 0, 3}).Draw(t, "tail"), Begin: true, Follow: true}
	begin.Done = closed
	s.readWith(t, begin, -1) // of an empty log, where everything will come
	return s
}

func (s *story) open(t *rapid.T) {
	var err error
	s.writer, err = Open(s.dir, WriterOptions{
		Now: s.clock.now, Uptime: s.clock.uptime, Boot: s.bootName(), Limits: Limits{MaxFileBytes: 120, MaxFiles: 3},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (s *story) bootName() string { return fmt.Sprint("boot ", s.boot) }

func (s *story) writeLine(t *rapid.T) { s.write(t, true) }
func (s *story) writePart(t *rapid.T) { s.write(t, false) }

// write begins a line, or continues the current one.
func (s *story) write(t *rapid.T, ends bool) {
	i := rapid.IntRange(0, 1).Draw(t, "stream")
	text := "more"
	if !s.begun[i] {
		text = fmt.Sprintf("%d:", s.written[i])
		s.written[i]++
	}
	s.begun[i] = !ends
	if ends {
		text += "\n"
	}
	before := s.onDisk(t)
	s.writer.append(streams[i], []byte(text))
	s.note(before, s.onDisk(t), true)
}

func (s *story) killWriter(t *rapid.T) {
	if s.writer.file != nil {
		s.writer.file.Close()
	}
	s.begun = [2]bool{}
	s.open(t)
}

// crashMachine loses what had not reached the disk: the newest files of this boot, and the end of the one before them.
// The first file after a restart has reached it, up to its header.
func (s *story) crashMachine(t *rapid.T) {
	before := s.onDisk(t)
	seqs, _ := listFiles(s.dir)
	seqs = slices.DeleteFunc(seqs, func(seq uint64) bool { return headerOf(s.dir, seq).boot != s.bootName() })
	fewest, least := 0, int64(0)
	if len(seqs) > 0 && headerOf(s.dir, seqs[0]).prev != seqs[0]-1 {
		fewest, least = 1, int64(fileHeadSize)
	}
	left := rapid.IntRange(fewest, len(seqs)).Draw(t, "files left")
	if left > 1 {
		least = 0
	}
	for _, seq := range seqs[left:] {
		if err := os.Remove(filePath(s.dir, seq)); err != nil {
			t.Fatal(err)
		}
	}
	if left < len(seqs) {
		s.forget()
	}
	if left > 0 {
		path := filePath(s.dir, seqs[left-1])
		info, err := os.Stat(path)
		if err == nil {
			err = os.Truncate(path, rapid.Int64Range(least, info.Size()).Draw(t, "bytes left"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s.removed = true
	s.note(before, s.onDisk(t), false)
	s.boot++
	s.killWriter(t)
}

func (s *story) removeLog(t *rapid.T) {
	before := s.onDisk(t)
	s.forget()
	if err := os.RemoveAll(s.dir); err != nil {
		t.Fatal(err)
	}
	s.removed = true
	s.note(before, s.onDisk(t), false)
	s.killWriter(t)
}

// onDisk are the records that are there now.
func (s *story) onDisk(t *rapid.T) (records map[string]bool) {
	records = map[string]bool{}
	err := Read(t.Context(), s.dir, Options{Tail: -1}, func(e Entry) error {
		if number, _, isBegin := strings.Cut(e.Line, ":"); isBegin {
			records[string(e.Stream)+" "+number] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// forget removes what identified removed files: the numbers of those that were there.
func (s *story) forget() {
	for _, gone := range s.gone {
		for number := range gone {
			gone[number] = false
		}
	}
}

// note remembers which lines are gone, and whether a reader can know that.
func (s *story) note(before, after map[string]bool, known bool) {
	for record := range before {
		if after[record] {
			continue
		}
		s.removed = true
		var stream string
		var number int
		if _, err := fmt.Sscan(record, &stream, &number); err != nil {
			panic(err)
		}
		s.gone[Stream(stream).index()][number] = known
	}
}

// read resumes where it was and stops after count entries, unless that is negative.
func (s *story) read(t *rapid.T, count int) {
	s.readWith(t, Options{After: s.after, Begin: rapid.Bool().Draw(t, "begin")}, count)
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (s *story) readWith(t *rapid.T, opts Options, count int) {
	enough := errors.New("enough")
	err := Read(t.Context(), s.dir, opts, func(e Entry) error {
		again, err := ParsePosition(e.Position.String())
		if err != nil || again != e.Position {
			t.Fatalf("position %s is read as %s (%v)", e.Position, again, err)
		}
		s.after = &again
		s.receive(t, e)
		if count--; count == 0 {
			return enough
		}
		return nil
	})
	if err != nil && !errors.Is(err, enough) {
		t.Fatal(err)
	}
}

// receive checks the order of lines.
func (s *story) receive(t *rapid.T, e Entry) {
	switch {
	case e.Begin:
		return
	case e.Gap:
		if !s.removed {
			t.Fatal("a gap is reported though everything is there")
		}
		s.told = [2]bool{true, true}
		return
	}
	i := e.Stream.index()
	s.joined[i] += e.Line
	if e.Partial {
		return
	}
	line := s.joined[i]
	s.joined[i] = ""
	digits, rest, isWhole := strings.Cut(line, ":")
	if !isWhole {
		if !s.told[i] && !s.removed {
			t.Fatalf("%s: the beginning of %q is missing", e.Stream, line)
		}
		return
	}
	var number int
	if _, err := fmt.Sscan(digits, &number); err != nil || strings.Trim(strings.ReplaceAll(rest, "more", ""), " ") != "" {
		t.Fatalf("%s: got the line %q", e.Stream, line)
	}
	if number < s.next[i] {
		t.Fatalf("%s: line %d came again", e.Stream, number)
	}
	for missing := s.next[i]; missing < number; missing++ {
		known, isGone := s.gone[i][missing]
		if !isGone {
			t.Fatalf("%s: line %d is missing before %d, and on the disk", e.Stream, missing, number)
		}
		if known && !s.told[i] {
			t.Fatalf("%s: line %d was removed before %d, and nothing says so", e.Stream, missing, number)
		}
	}
	s.next[i], s.told[i] = number+1, false
}

// checkEnd checks that the last lines were read, too.
func (s *story) checkEnd(t *rapid.T) {
	for i := range s.next {
		var begun int
		if _, err := fmt.Sscanf(s.joined[i], "%d:", &begun); err == nil {
			s.next[i] = begun + 1 // its end is not written yet
		}
		for missing := s.next[i]; missing < s.written[i]; missing++ {
			if _, isGone := s.gone[i][missing]; !isGone {
				t.Fatalf("%s: the last line, %d, is missing", streams[i], missing)
			}
		}
	}
}

// A log of the release before positions has no headers. It is read and resumed like any other, and a writer continues
// in a new file.
func TestLogOfThePreviousReleaseIsResumed(t *testing.T) {
	dir := t.TempDir()
	old := "2026-01-02T03:04:05.000000000Z stdout F one\n2026-01-02T03:04:05.000000000Z stdout F two\n"
	if err := os.WriteFile(filepath.Join(dir, "00000003.log"), []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	first := read(t, dir, Options{Tail: -1})[0]
	write(t, openLog(t, dir, WriterOptions{}), Stdout, "three\n")
	equal(t, join(read(t, dir, Options{After: &first.Position})), []string{"stdout: two", "stdout: three"})
	equal(t, logFiles(t, dir), []string{"00000003.log", "00000004.log"})
}

// A crash of the machine can take the header of the newest remaining file, and whole files after it. The writer does
// not reuse their numbers: a reader that resumes after them gets everything written since.
func TestLogWithALostHeaderIsResumed(t *testing.T) {
	dir := t.TempDir()
	limits := Limits{MaxFileBytes: 1, MaxFiles: 10}
	w := openLog(t, dir, WriterOptions{Boot: "one", Limits: limits})
	for i := range 4 {
		write(t, w, Stdout, fmt.Sprintln(i))
	}
	w.Close()
	entries := all(t, dir)
	last := entries[len(entries)-1].Position
	if err := errors.Join(os.Truncate(filePath(dir, 2), 0), os.Remove(filePath(dir, 3)), os.Remove(filePath(dir, 4))); err != nil {
		t.Fatal(err)
	}
	w = openLog(t, dir, WriterOptions{Boot: "two", Limits: limits})
	for i := range 3 {
		write(t, w, Stdout, fmt.Sprintln(i+4))
	}
	equal(t, join(read(t, dir, Options{After: &last})), []string{"gap", "stdout: 4", "stdout: 5", "stdout: 6"})
}

// Following by time shows new records whatever their time: the machine's clock may be behind the reader's.
func TestFollowSinceDeliversNewLinesWhateverTheClock(t *testing.T) {
	dir := t.TempDir()
	c := newClock()
	w := openLog(t, dir, WriterOptions{Now: c.now, Uptime: c.uptime})
	write(t, w, Stdout, "old\n")
	done := make(chan struct{})
	var got []Entry
	err := Read(t.Context(), dir, Options{Tail: -1, Follow: true, Begin: true, Done: done, Since: c.Add(time.Hour)}, func(e Entry) error {
		if e.Begin {
			c.jump(-time.Hour)
			write(t, w, Stdout, "new\n")
			close(done)
			return nil
		}
		got = append(got, e)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, join(got), []string{"stdout: new"})
}

// Restarts of the machine create small files, which do not displace what the limits allow.
func TestRestartsOfTheMachineRemoveNothing(t *testing.T) {
	dir := t.TempDir()
	var want []string
	for boot := range 10 {
		w := openLog(t, dir, WriterOptions{Boot: fmt.Sprint("boot ", boot), Limits: Limits{MaxFiles: 2}})
		write(t, w, Stdout, fmt.Sprintf("%d\n", boot))
		want = append(want, fmt.Sprintf("stdout: %d", boot))
	}
	equal(t, join(all(t, dir)), want)
}

// An invented position reads something or nothing, and no partial records.
func TestInventedPositionIsHarmless(t *testing.T) {
	dir := t.TempDir()
	write(t, openLog(t, dir, WriterOptions{}), Stdout, "one\ntwo\n")
	known := read(t, dir, Options{Tail: -1})[0].Position
	for offset := range int64(400) {
		place := known.Stdout
		place.Offset = offset
		for _, e := range read(t, dir, Options{After: &Position{place, place}}) {
			if !e.Gap && e.Line != "one" && e.Line != "two" {
				t.Errorf("offset %d: got %q", offset, e.Line)
			}
		}
	}
}

func FuzzParsePosition(f *testing.F) {
	f.Add("1.00000000.00000000.0")
	f.Add("12.0a1b2c3d.ffffffff.99+,13.0a1b2c3d.00000001.4")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePosition(text)
		if err != nil {
			return
		}
		if p.String() != text {
			t.Errorf("%q is read as %q", text, p)
		}
		if p.Stdout.File == 0 || p.Stdout.Offset < 0 || p.Stderr.File == 0 || p.Stderr.Offset < 0 {
			t.Errorf("%q is a position in no file", text)
		}
	})
}

func FuzzParseHeader(f *testing.F) {
	f.Add(string(header{log: 1, epoch: 2, prev: 3, boot: currentBoot()}.line()))
	f.Fuzz(func(t *testing.T, text string) {
		line := strings.TrimSuffix(text, "\n")
		if h, ok := parseHeader([]byte(line)); ok && string(h.line()) != line+"\n" {
			t.Errorf("%q is read as %+v", line, h)
		}
	})
}
