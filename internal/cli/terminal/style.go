package terminal

import (
	"os"
	"strings"
)

// Style is what a terminal can show.
type Style struct {
	Colours bool
	Unicode bool
}

// styleOf follows the usual environment variables: TERM, NO_COLOR and the locale.
func styleOf(getenv func(string) string) Style {
	kind := getenv("TERM")
	locale := getenv("LANG")
	for _, name := range []string{"LC_CTYPE", "LC_ALL"} { // the later one counts
		if value := getenv(name); value != "" {
			locale = value
		}
	}
	locale = strings.ToLower(locale)
	return Style{
		Colours: getenv("NO_COLOR") == "" && kind != "" && kind != "dumb",
		Unicode: kind != "dumb" && kind != "linux" && (strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")),
	}
}

// StyleFor is the style of a stream: no colours and no Unicode unless it is a terminal.
func StyleFor(stream any) Style {
	if !IsTerminal(stream) {
		return Style{}
	}
	return styleOf(os.Getenv)
}

// Colour is the parameter of the escape sequence that switches a colour on; empty for none.
type Colour string

const (
	noColour Colour = ""
	Bold     Colour = "1"
	Dim      Colour = "2"
	Red      Colour = "31"
	Green    Colour = "32"
	Yellow   Colour = "33"
)

const colourOff = "\x1b[0m"

// Paint colours a text if the terminal has colours.
func (s Style) Paint(c Colour, text string) string {
	if !s.Colours || text == "" || c == noColour {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + colourOff
}

// sparks are the characters of a plot, lowest first.
func (s Style) sparks() []rune {
	if s.Unicode {
		return []rune("▁▂▃▄▅▆▇█")
	}
	return []rune("_.-:=+*#")
}

// Spark plots the newest values, width characters wide, on a scale from 0 to most.
func (s Style) Spark(values []float64, most float64, width int) string {
	levels := s.sparks()
	out := make([]rune, 0, width)
	for range width - len(values) {
		out = append(out, ' ')
	}
	for _, v := range values[max(0, len(values)-width):] {
		level := 0
		if most > 0 {
			level = int(v / most * float64(len(levels)))
		}
		out = append(out, levels[min(max(level, 0), len(levels)-1)])
	}
	return string(out)
}

// Bar shows which part of something is used: green, yellow from 70 %, red from 90 %.
func (s Style) Bar(part float64, width int) string {
	full, empty := "█", "░"
	if !s.Unicode {
		full, empty = "#", "."
	}
	part = min(max(part, 0), 1)
	n := int(part*float64(width) + 0.5)
	code := Green
	switch {
	case part >= 0.9:
		code = Red
	case part >= 0.7:
		code = Yellow
	}
	return s.Paint(code, strings.Repeat(full, n)) + strings.Repeat(empty, width-n)
}

// Branch is the line that leads to a leaf of a tree.
func (s Style) Branch(last bool) string {
	switch {
	case !s.Unicode && last:
		return "`- "
	case !s.Unicode:
		return "|- "
	case last:
		return "└─ "
	}
	return "├─ "
}
