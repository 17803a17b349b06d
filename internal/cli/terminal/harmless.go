package terminal

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// What replicas print and other people write may move the cursor, rename the window, answer in the place of the keyboard,
// or make a line look like another one. On a terminal, such characters are shown instead of sent: ESC as ^[, others as
// ^M, \u202e or \xff. Colours are sent, because they harm nobody.

// HarmlessLine makes one line of output safe for a terminal. Colours that are on at its end are switched off.
func HarmlessLine(line []byte) []byte {
	line = bytes.TrimSuffix(line, []byte("\r")) // of a program that ends its lines so
	safe, coloured := harmless(line, false)
	if coloured {
		safe = append(safe, colourOff...)
	}
	return safe
}

// Harmless makes a text of several lines safe for a terminal.
func Harmless(text []byte) []byte {
	safe, _ := harmless(text, true)
	return safe
}

// harmless returns the text itself if nothing is to be shown otherwise. coloured reports whether a colour is on at its end.
func harmless(text []byte, lines bool) (safe []byte, coloured bool) {
	var out []byte // nil as long as nothing differs
	copied := 0    // bytes of text that are in out
	for i := 0; i < len(text); {
		if c := text[i]; c >= ' ' && c < 0x7f || c == '\t' || c == '\n' && lines {
			i++
			continue
		}
		if n := colourAt(text[i:]); n > 0 {
			coloured = string(text[i:i+n]) != colourOff && string(text[i:i+n]) != "\x1b[m"
			i += n
			continue
		}
		r, size := utf8.DecodeRune(text[i:])
		shown := ""
		switch {
		case r == utf8.RuneError && size == 1:
			shown = fmt.Sprintf(`\x%02x`, text[i])
		case r < ' ':
			shown = "^" + string(r+'@')
		case r == 0x7f:
			shown = "^?"
		case disguises(r):
			shown = fmt.Sprintf(`\u%04x`, r)
		default:
			i += size
			continue
		}
		out = append(out, text[copied:i]...)
		out = append(out, shown...)
		i += size
		copied = i
	}
	if out == nil {
		return text[:len(text):len(text)], coloured
	}
	return append(out, text[copied:]...), coloured
}

// disguises reports whether a character controls the terminal, or the order or the place in which others appear.
func disguises(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' || r == '\ufeff'
}

// maxColour is the longest sequence that sets colours, in bytes.
const maxColour = 64

// colourAt is the length of the complete sequence at the beginning of a text that sets colours and nothing else, 0 if there
// is none.
func colourAt(text []byte) int {
	if len(text) < 3 || text[0] != 0x1b || text[1] != '[' {
		return 0
	}
	for i := 2; i < min(len(text), maxColour); i++ {
		switch c := text[i]; {
		case c == 'm':
			return i + 1
		case (c < '0' || c > '9') && c != ';' && c != ':':
			return 0
		}
	}
	return 0
}

// Safe is a writer of texts by others. If out is a terminal, each Write makes its text harmless.
func Safe(out io.Writer) io.Writer {
	if !IsTerminal(out) {
		return out
	}
	return safeWriter{out}
}

type safeWriter struct{ out io.Writer }

func (w safeWriter) Write(text []byte) (int, error) {
	if _, err := w.out.Write(Harmless(text)); err != nil {
		return 0, err
	}
	return len(text), nil
}

// Plain makes untrusted text fit for a cell: one line, no control characters, nothing that changes the order of others.
func Plain(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case unicode.IsControl(r), r == '\u2028', r == '\u2029':
			return ' '
		case disguises(r):
			return utf8.RuneError
		}
		return r
	}, s))
}
