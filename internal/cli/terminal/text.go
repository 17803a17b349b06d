package terminal

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// abbreviate cuts a plain text to a width and marks the cut with an ellipsis.
func abbreviate(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	return strings.TrimRight(string([]rune(s)[:width-1]), " ") + "…"
}

// Shorten makes a line narrower than width and marks the cut with an ellipsis.
func Shorten(line string, width int) string {
	if width < 2 || utf8.RuneCountInString(line) < width {
		return line
	}
	return string([]rune(line)[:width-2]) + "…"
}

// cut shortens a line to a width. Colours take no width; a colour that is cut off is switched off.
func cut(line string, width int) string {
	seen, coloured := 0, false
	for i := 0; i < len(line); {
		if strings.HasPrefix(line[i:], "\x1b[") {
			end := strings.IndexByte(line[i:], 'm')
			if end < 0 {
				return line[:i]
			}
			coloured = line[i:i+end+1] != colourOff
			i += end + 1
			continue
		}
		if seen == width {
			if coloured {
				return line[:i] + colourOff
			}
			return line[:i]
		}
		_, size := utf8.DecodeRuneInString(line[i:])
		i += size
		seen++
	}
	return line
}

// Width is the width of a text without its colours.
func Width(text string) int {
	width := 0
	for len(text) > 0 {
		if strings.HasPrefix(text, "\x1b[") {
			end := strings.IndexByte(text, 'm')
			if end < 0 {
				return width
			}
			text = text[end+1:]
			continue
		}
		_, size := utf8.DecodeRuneInString(text)
		text = text[size:]
		width++
	}
	return width
}

// Size formats a number of bytes for people.
func Size(n int64) string {
	const units = "KMGTPE"
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/1000, 0
	for value >= 999.95 && unit < len(units)-1 {
		value /= 1000
		unit++
	}
	return fmt.Sprintf("%.1f %cB", value, units[unit])
}
