package logfile

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestPromptIsWrittenBeforeItsLineEnds(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := openLog(t, dir, WriterOptions{})
		in, out := net.Pipe()
		result := make(chan error, 1)
		go func() { result <- w.Pump(Stdout, out) }()
		send := func(text string) {
			if _, err := in.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}

		send("Name? ")
		if got := all(t, dir); len(got) != 0 {
			t.Errorf("written at once: %v", got)
		}
		// More of the same line does not postpone it.
		time.Sleep(partWait / 2)
		send("(required) ")
		time.Sleep(partWait / 2)
		synctest.Wait()
		if got := all(t, dir); len(got) != 1 || !got[0].Partial || got[0].Line != "Name? (required) " {
			t.Errorf("after a pause: %+v", got)
		}
		send("Ada\nnext")
		if got := join(all(t, dir)); len(got) != 1 || got[0] != "stdout: Name? (required) Ada" {
			t.Errorf("after the newline: %q", got)
		}
		// A line that ends in time is written in one piece.
		time.Sleep(partWait / 2)
		send(" line\n")
		if got := all(t, dir); got[len(got)-1].Line != "next line" {
			t.Errorf("at the end: %+v", got)
		}
		in.Close()
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
}

// chunks delivers one chunk for each Read.
type chunks [][]byte

func (c *chunks) Read(b []byte) (int, error) {
	if len(*c) == 0 {
		return 0, os.ErrClosed
	}
	n := copy(b, (*c)[0])
	if (*c)[0] = (*c)[0][n:]; len((*c)[0]) == 0 {
		*c = (*c)[1:]
	}
	return n, nil
}

// Each stream reads back what was written to it, in whatever pieces.
func TestReadReturnsWhatWasWritten(t *testing.T) {
	root := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(root, "")
		if err != nil {
			rt.Fatal(err)
		}
		piece := rapid.OneOf(
			rapid.SliceOfN(rapid.SampledFrom([]byte("\n\nab\r\x00 \xff")), 1, 40),
			rapid.Map(rapid.IntRange(1, 3*maxPart), func(n int) []byte { return []byte(strings.Repeat("x", n)) }),
		)
		limits := Limits{MaxFileBytes: rapid.Int64Range(1, 100_000).Draw(rt, "bytes"), MaxFiles: 10_000}
		var want [2]strings.Builder
		for range rapid.IntRange(1, 4).Draw(rt, "writers") {
			w := openLog(t, dir, WriterOptions{Limits: limits})
			for _, stream := range []Stream{Stdout, Stderr} {
				in := chunks(rapid.SliceOfN(piece, 0, 6).Draw(rt, string(stream)))
				var text strings.Builder
				for _, chunk := range in {
					text.Write(chunk)
				}
				if s := text.String(); s != "" && !strings.HasSuffix(s, "\n") {
					text.WriteString("\n")
				}
				want[stream.index()].WriteString(text.String())
				_ = w.Pump(stream, &in)
			}
			w.Close()
		}
		var got [2]strings.Builder
		for _, line := range join(all(t, dir)) {
			stream, text, _ := strings.Cut(line, ": ")
			got[Stream(stream).index()].WriteString(text + "\n")
		}
		for s := range want {
			if got[s].String() != want[s].String() {
				rt.Errorf("stream %d: got %q, want %q", s, got[s].String(), want[s].String())
			}
		}
		// And the tail of a log is its end.
		entries := all(t, dir)
		lines := join(entries)
		n := rapid.IntRange(0, len(lines)+1).Draw(rt, "tail")
		last := join(read(t, dir, Options{Tail: n}))
		if w := lines[max(0, len(lines)-n):]; strings.Join(last, "\n") != strings.Join(w, "\n") {
			rt.Errorf("tail %d: got %q, want %q", n, last, w)
		}
	})
}

// A full disk never blocks the writer, and the log says what is missing.
func TestFullDisk(t *testing.T) {
	disk := smallDisk(t)
	dir := filepath.Join(disk, "log")
	w := openLog(t, dir, WriterOptions{})
	write(t, w, Stdout, "first\n")
	ballast := filepath.Join(disk, "ballast")
	fillDisk(t, ballast)
	lost := strings.Repeat("0123456789\n", 100_000)
	write(t, w, Stdout, lost)
	before := len(all(t, dir)) // what still fitted in the last page
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	write(t, w, Stdout, "last\n")

	lines := join(all(t, dir))
	marker := lines[before]
	missing := 100_000 - (before - 1)
	want := "stderr: cloudless: " + itoa(missing) + " lines (" + itoa(missing*10) + " bytes) of output were lost here: no space left on device"
	if marker != want {
		t.Errorf("got %q, want %q", marker, want)
	}
	equal(t, lines[before+1:], []string{"stdout: last"})

	// A writer can also begin while there is no room at all.
	w.Close()
	fillDisk(t, ballast)
	w = openLog(t, dir, WriterOptions{Limits: Limits{MaxFileBytes: 1}})
	write(t, w, Stdout, lost)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	w.Close()
	lines = join(all(t, dir))
	if got := lines[len(lines)-1]; !strings.Contains(got, "of output were lost here") {
		t.Errorf("the last line is %q, want the admission of a loss", got)
	}
}

// A reader that follows while the disk is full gets everything that is on disk
// afterwards. Each attempt to begin a file wakes it.
func TestFollowContinuesAfterAFullDisk(t *testing.T) {
	disk := smallDisk(t)
	dir := filepath.Join(disk, "log")
	w := openLog(t, dir, WriterOptions{})
	ballast := filepath.Join(disk, "ballast")
	fillDisk(t, ballast)
	finished := make(chan struct{})
	entries, result := follow(t, dir, Options{Tail: -1, Begin: true, Done: finished})
	if e := <-entries; !e.Begin {
		t.Fatalf("got %+v before the beginning", e)
	}
	for range 200 {
		write(t, w, Stdout, "lost\n")
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	want := []string{"stderr: cloudless: 200 lines (800 bytes) of output were lost here: no space left on device"}
	for i := range 50 {
		write(t, w, Stdout, itoa(i)+"\n")
		want = append(want, "stdout: "+itoa(i))
	}
	close(finished)
	equal(t, collect(entries), want)
	if err := <-result; err != nil {
		t.Error(err)
	}
	equal(t, join(all(t, dir)), want)
	equal(t, logFiles(t, dir), []string{"00000001.log"})
}

// smallDisk is a file system of 256 KiB.
func smallDisk(t *testing.T) string {
	t.Helper()
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatalf("mount a small disk (the tests run as root): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return disk
}

func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 4096)
	for {
		if _, err := f.Write(block); err != nil {
			return
		}
	}
}
