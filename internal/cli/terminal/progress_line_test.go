package terminal

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/creack/pty"
)

// Log lines do not run into the line that shows the progress.
func TestLogLinesMakeTheProgressLineMove(t *testing.T) {
	terminal, err := os.Create(filepath.Join(t.TempDir(), "terminal"))
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	line := &ProgressLine{out: terminal}
	log := line.Beside(terminal)
	fmt.Fprintln(log, "first")
	line.Show("starting")
	fmt.Fprintln(log, "second")
	line.Clear()
	fmt.Fprintln(log, "third")
	const erase = "\r\x1b[K"
	written, err := os.ReadFile(terminal.Name())
	if want := "first\n" + erase + "starting" + erase + "second\n" + erase + "starting" + erase + "third\n"; err != nil || string(written) != want {
		t.Errorf("the terminal got %q, want %q", written, want)
	}
	if out := new(bytes.Buffer); NewProgressLine(out).Beside(out) != io.Writer(out) {
		t.Error("where no progress is shown, the log is not written as it is")
	}
}

func TestProgressIsForTerminalsAlone(t *testing.T) {
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	if err := pty.Setsize(slave, &pty.Winsize{Cols: 10, Rows: 5}); err != nil {
		t.Fatal(err)
	}
	line := NewProgressLine(slave)
	line.Show("short")
	line.Show("short")
	line.Show("longer than the line")
	line.Clear()
	want := "\r\x1b[Kshort\r\x1b[Klonger t…\r\x1b[K"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(master, got); err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("shown %q, want %q", got, want)
	}
	if err := slave.Close(); err != nil {
		t.Fatal(err)
	}

	var file bytes.Buffer
	NewProgressLine(&file).Show("anything")
	if file.Len() != 0 {
		t.Errorf("a file got %q", &file)
	}
}
