package terminal

import (
	"bytes"
	"strings"
	"testing"

	"github.com/creack/pty"
	"pgregory.net/rapid"
)

func TestCanvasDrawsOverWhatItDrewAndStaysOnTheScreen(t *testing.T) {
	var out bytes.Buffer
	c := &Canvas{out: &out, Size: func() (int, int) { return 5, 4 }}
	draw := func(want string, lines ...string) {
		t.Helper()
		out.Reset()
		if err := c.Draw(lines); err != nil || out.String() != want {
			t.Errorf("drew %q (%v), want %q", out.String(), err, want)
		}
	}
	draw("one\x1b[K\r\nlonge\x1b[K\r\n\x1b[J", "one", "longer")
	draw("\x1b[2A\ra\x1b[K\r\nb\x1b[K\r\nand 3\x1b[K\r\n\x1b[J", "a", "b", "c", "d", "e")
	draw("\x1b[3A\rx\x1b[K\r\n\x1b[J", "x")
	c.fullScreen = true
	draw("\x1b[Hx\x1b[K\r\n\x1b[J", "x")
}

// A cut line has exactly the permitted width and resets its colours.
func TestCutLinesFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line, plainText := "", ""
		for _, piece := range rapid.SliceOfN(rapid.StringMatching(`[a-z█ ]{0,5}`), 0, 6).Draw(t, "pieces") {
			plainText += piece
			if rapid.Bool().Draw(t, "coloured") {
				piece = Style{Colours: true}.Paint("31", piece)
			}
			line += piece
		}
		width := rapid.IntRange(0, 30).Draw(t, "width")
		got := cut(line, width)
		if want := min(width, Width(plainText)); Width(got) != want {
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
		want Style
	}{
		{map[string]string{"TERM": "xterm-256color", "LANG": "en_US.UTF-8"}, Style{Colours: true, Unicode: true}},
		{map[string]string{"TERM": "xterm", "LANG": "C.utf8"}, Style{Colours: true, Unicode: true}},
		{map[string]string{"TERM": "xterm", "LANG": "C.UTF-8", "LC_ALL": "C"}, Style{Colours: true}},
		{map[string]string{"TERM": "xterm", "LANG": "C", "LC_CTYPE": "C.UTF-8"}, Style{Colours: true, Unicode: true}},
		{map[string]string{"TERM": "xterm", "LANG": "C.UTF-8", "NO_COLOR": "1"}, Style{Unicode: true}},
		{map[string]string{"TERM": "linux", "LANG": "C.UTF-8"}, Style{Colours: true}},
		{map[string]string{"TERM": "dumb", "LANG": "C.UTF-8"}, Style{}},
		{nil, Style{}},
	} {
		if got := styleOf(func(key string) string { return one.env[key] }); got != one.want {
			t.Errorf("%v: %+v, want %+v", one.env, got, one.want)
		}
	}
}

func TestPlots(t *testing.T) {
	nice, old := Style{Unicode: true}, Style{}
	for _, one := range []struct{ got, want string }{
		{nice.Spark([]float64{0, 0.25, 0.5, 1, 2}, 1, 8), "   ▁▃▅██"},
		{old.Spark([]float64{0, 0.25, 0.5, 1, 2}, 1, 8), "   _-=##"},
		{nice.Spark([]float64{1, 0, 1}, 1, 2), "▁█"},
		{nice.Spark([]float64{1}, 0, 2), " ▁"},
		{nice.Bar(0.5, 4), "██░░"},
		{old.Bar(7, 4), "####"},
		{old.Bar(-1, 4), "...."},
		{Style{Colours: true}.Bar(0.95, 4), "\x1b[31m####\x1b[0m"},
	} {
		if one.got != one.want {
			t.Errorf("drew %q, want %q", one.got, one.want)
		}
	}
}

func TestColoursOnlyWhereTheyAreWanted(t *testing.T) {
	screen, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	defer terminal.Close()
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	if !StyleFor(terminal).Colours || StyleFor(&strings.Builder{}) != (Style{}) {
		t.Error("colours are for terminals")
	}
	t.Setenv("NO_COLOR", "1")
	if StyleFor(terminal).Colours {
		t.Error("NO_COLOR is not heard")
	}
}
