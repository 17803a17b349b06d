package terminal

import (
	"bytes"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/creack/pty"
)

func TestControlCharactersAreShown(t *testing.T) {
	for line, want := range map[string]string{
		"plain\ttext":                 "plain\ttext",
		"Grüße 👍🏽 👩‍💻":                "Grüße 👍🏽 👩‍💻",
		"ends with a return\r":        "ends with a return",
		"over\rwritten":               "over^Mwritten",
		"\x1b]0;title\x07":            "^[]0;title^G",
		"\x1b[2J\x1b[1;1H":            "^[[2J^[[1;1H",
		"\x1b[6n":                     "^[[6n",
		"\x1b[31mred\x1b[0m":          "\x1b[31mred\x1b[0m",
		"\x1b[1;38:2:1:2:3mred":       "\x1b[1;38:2:1:2:3mred" + colourOff,
		"\x1b[31mred\x1b[m":           "\x1b[31mred\x1b[m",
		"\x1b[31":                     "^[[31",
		"\x1b[>4;2m":                  "^[[>4;2m",
		"\u009b2J":                    `\u009b2J`,
		"\x9b2J":                      `\x9b2J`,
		"user\u202egpj.exe":           `user\u202egpj.exe`,
		"a\u2066b\u2069c":             `a\u2066b\u2069c`,
		"two\u2028lines":              `two\u2028lines`,
		"\xff\xfe":                    `\xff\xfe`,
		"\x7f\x00":                    `^?^@`,
		"\x1bPq" + "sixel" + "\x1b\\": `^[Pqsixel^[\`,
		"a\nb":                        "a^Jb",
	} {
		if got := string(HarmlessLine([]byte(line))); got != want {
			t.Errorf("%q is shown as %q, want %q", line, got, want)
		}
	}
	if got := string(Harmless([]byte("a\n\x1b[2Jb\n"))); got != "a\n^[[2Jb\n" {
		t.Errorf("lines are shown as %q", got)
	}
}

func TestCellsHaveNoDisguises(t *testing.T) {
	if got := Plain(" a\x1b[2J\u202eb\u2028c\n"); got != "a [2J\ufffdb c" {
		t.Errorf("got %q", got)
	}
}

// Only terminals need it: files and pipes get each byte.
func TestOnlyTerminalsAreProtected(t *testing.T) {
	const text = "\x1b[2Jtext\n"
	var file bytes.Buffer
	if _, err := Safe(&file).Write([]byte(text)); err != nil || file.String() != text {
		t.Errorf("a file got %q, %v", file.String(), err)
	}
	far, near, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = far.Close(), near.Close() }()
	if n, err := Safe(near).Write([]byte(text)); err != nil || n != len(text) {
		t.Fatal(n, err)
	}
	shown := make([]byte, 100)
	n, err := far.Read(shown)
	if err != nil || strings.TrimRight(string(shown[:n]), "\r\n") != "^[[2Jtext" {
		t.Errorf("a terminal got %q, %v", shown[:n], err)
	}
}

// Whatever a replica prints, a terminal gets text, tabs and complete colours, and text that is harmless stays as it is.
func FuzzHarmless(f *testing.F) {
	for _, seed := range []string{"text", "\x1b[31mred\x1b[0m", "\x1b]52;c;aGk=\x07", "\xc2\x9b2J", "\u202e", "\xe2\x80", "\x1b[\x1b[31m", "\x1b[0;1;38;5;8mx\r"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		before := bytes.Clone(line)
		for _, safe := range [][]byte{HarmlessLine(line), Harmless(line)} {
			if !bytes.Equal(before, line) {
				t.Fatalf("the caller's text was changed from %q to %q", before, line)
			}
			rest := safe
			for len(rest) > 0 {
				if n := colourAt(rest); n > 0 {
					rest = rest[n:]
					continue
				}
				r, size := utf8.DecodeRune(rest)
				if r == utf8.RuneError && size == 1 || unicode.IsControl(r) && r != '\t' && r != '\n' || unicode.Is(unicode.Bidi_Control, r) {
					t.Fatalf("%q is sent to a terminal as %q", line, safe)
				}
				rest = rest[size:]
			}
			if again := Harmless(safe); !bytes.Equal(again, safe) {
				t.Fatalf("%q becomes %q, which becomes %q", line, safe, again)
			}
		}
		if bytes.ContainsRune(HarmlessLine(line), '\n') {
			t.Fatalf("%q is shown on several lines", line)
		}
		if cell := Plain(string(line)); strings.ContainsFunc(cell, disguises) || !utf8.ValidString(cell) {
			t.Fatalf("%q becomes the cell %q", line, cell)
		}
	})
}
