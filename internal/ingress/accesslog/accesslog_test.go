package accesslog

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/must"
)

func TestLinesAreJSONWhateverClientsSend(t *testing.T) {
	dir := t.TempDir()
	l := Open(dir)
	const hostile = "a\"b\\c\n\x00\x7f\xff\u2028ü"
	l.Write(func(b []byte) []byte {
		return Begin(b, time.Unix(0, 0)).String("agent", hostile).String("empty", "").Int("status", 200).Milliseconds("ms", 1500*time.Microsecond).End()
	})
	l.Close()
	text, err := os.ReadFile(filepath.Join(dir, Name))
	must.Succeed(t, err)
	var line struct {
		Time, Agent string
		Status      int
		Ms          float64
	}
	must.Succeed(t, json.Unmarshal(text, &line))
	if line.Agent != strings.ToValidUTF8(hostile, "\ufffd") || line.Status != 200 || line.Ms != 1.5 || line.Time != "1970-01-01T00:00:00.000Z" {
		t.Errorf("the line is %+v", line)
	}
	if strings.Contains(string(text), "empty") || strings.Count(string(text), "\n") != 1 {
		t.Errorf("the text is %q", text)
	}
}

func TestLogIsRotatedBySize(t *testing.T) {
	dir := t.TempDir()
	l := Open(dir)
	l.most = 1000
	for range 100 {
		l.Write(func(b []byte) []byte { return append(b, strings.Repeat("x", 99)...) })
		l.Flush()
	}
	l.Close()
	if got, want := must.List(t, dir), "access.log access.log.1 access.log.2 access.log.3 access.log.4"; got != want {
		t.Errorf("the files are %s, want %s", got, want)
	}
	for _, name := range strings.Fields(must.List(t, dir)) {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() > 1000 || info.Size() == 0 {
			t.Errorf("%s has %d bytes, %v", name, info.Size(), err)
		}
	}
}
