package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestCanvasDrawsOverWhatItDrewAndStaysOnTheScreen(t *testing.T) {
	var out bytes.Buffer
	c := &canvas{out: &out, size: func() (int, int) { return 5, 4 }}
	draw := func(want string, lines ...string) {
		t.Helper()
		out.Reset()
		if err := c.draw(lines); err != nil || out.String() != want {
			t.Errorf("drew %q (%v), want %q", out.String(), err, want)
		}
	}
	draw("one\x1b[K\r\nlonge\x1b[K\r\n\x1b[J", "one", "longer")
	draw("\x1b[2A\ra\x1b[K\r\nb\x1b[K\r\nand 3\x1b[K\r\n\x1b[J", "a", "b", "c", "d", "e")
	draw("\x1b[3A\rx\x1b[K\r\n\x1b[J", "x")
	c.whole = true
	draw("\x1b[Hx\x1b[K\r\n\x1b[J", "x")
}

// However colours stand in it, a cut line is as wide as it may be and leaves no colour behind.
func TestCutLinesFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line, plainText := "", ""
		for _, piece := range rapid.SliceOfN(rapid.StringMatching(`[a-z█ ]{0,5}`), 0, 6).Draw(t, "pieces") {
			plainText += piece
			if rapid.Bool().Draw(t, "coloured") {
				piece = style{colours: true}.paint("31", piece)
			}
			line += piece
		}
		width := rapid.IntRange(0, 30).Draw(t, "width")
		got := cut(line, width)
		if want := min(width, visible(plainText)); visible(got) != want {
			t.Fatalf("%q cut to %d is %q", line, width, got)
		}
		if on, off := strings.Count(got, "\x1b[31m"), strings.Count(got, colourOff); on != off {
			t.Fatalf("%q leaves a colour behind", got)
		}
	})
}

func TestStyleFollowsTheTerminal(t *testing.T) {
	for _, one := range []struct {
		env  map[string]string
		want style
	}{
		{map[string]string{"TERM": "xterm-256color", "LANG": "en_US.UTF-8"}, style{colours: true, unicode: true}},
		{map[string]string{"TERM": "xterm", "LANG": "C.utf8"}, style{colours: true, unicode: true}},
		{map[string]string{"TERM": "xterm", "LANG": "C.UTF-8", "LC_ALL": "C"}, style{colours: true}},
		{map[string]string{"TERM": "xterm", "LANG": "C", "LC_CTYPE": "C.UTF-8"}, style{colours: true, unicode: true}},
		{map[string]string{"TERM": "xterm", "LANG": "C.UTF-8", "NO_COLOR": "1"}, style{unicode: true}},
		{map[string]string{"TERM": "linux", "LANG": "C.UTF-8"}, style{colours: true}},
		{map[string]string{"TERM": "dumb", "LANG": "C.UTF-8"}, style{}},
		{nil, style{}},
	} {
		if got := styleOf(func(key string) string { return one.env[key] }); got != one.want {
			t.Errorf("%v: %+v, want %+v", one.env, got, one.want)
		}
	}
}

func TestPlots(t *testing.T) {
	nice, old := style{unicode: true}, style{}
	for _, one := range []struct{ got, want string }{
		{nice.spark([]float64{0, 0.25, 0.5, 1, 2}, 1, 8), "   ▁▃▅██"},
		{old.spark([]float64{0, 0.25, 0.5, 1, 2}, 1, 8), "   _-=##"},
		{nice.spark([]float64{1, 0, 1}, 1, 2), "▁█"},
		{nice.spark([]float64{1}, 0, 2), " ▁"},
		{nice.bar(0.5, 4), "██░░"},
		{old.bar(7, 4), "####"},
		{old.bar(-1, 4), "...."},
		{style{colours: true}.bar(0.95, 4), "\x1b[31m####\x1b[0m"},
	} {
		if one.got != one.want {
			t.Errorf("drew %q, want %q", one.got, one.want)
		}
	}
}

func TestTopSortsAndRemembers(t *testing.T) {
	v := newTopView(style{})
	frames := busyFrames()
	for range historyLength + 5 {
		v.see(frames[0])
	}
	v.see(frames[1])
	if got := len(v.history["cpu web-a"]); got != historyLength {
		t.Errorf("it remembers %d values", got)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	names := func(by order) (found []string) {
		for _, line := range v.lines(200, by, now) {
			if name, _, _ := strings.Cut(line, " "); strings.HasPrefix(name, "default/") {
				found = append(found, name)
			}
		}
		return found
	}
	if got := fmt.Sprint(names(byCPU)); got != "[default/web-b default/web-a]" {
		t.Errorf("by CPU it is %s", got)
	}
	if got := fmt.Sprint(names(byMemory)); got != "[default/web-a default/web-b]" {
		t.Errorf("by memory it is %s", got)
	}
	v.see(used(3))
	if len(v.history) != 2 { // the node's own
		t.Errorf("replicas that are gone are remembered: %v", v.history)
	}
}
