package logfile

import (
	"bytes"
	"os"
	"testing"
)

// BenchmarkPump copies output from a pipe to the disk cache.
func BenchmarkPump(b *testing.B) {
	line := []byte("a line of output as programs write them, about eighty bytes long, more or less..\n")
	chunk := bytes.Repeat(line, 4096/len(line))
	w := openLog(b, b.TempDir(), WriterOptions{})
	b.SetBytes(int64(len(chunk)))
	r, pw, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		defer pw.Close()
		for range b.N {
			if _, err := pw.Write(chunk); err != nil {
				return
			}
		}
	}()
	defer r.Close()
	if err := w.Pump(Stdout, r); err != nil {
		b.Fatal(err)
	}
}
