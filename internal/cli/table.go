package cli

import (
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// table writes aligned columns. Rows that come after a flush keep the columns as far as they fit. On a terminal it is
// no wider than that and has colours; elsewhere it is plain and whole.
type table struct {
	out      io.Writer
	headings []string
	widths   []int
	rows     [][]string
	headed   bool // the headings have been written
	whole    bool // never cut to the terminal's width
}

func newTable(out io.Writer, headings ...string) *table {
	t := &table{out: out, headings: headings, widths: make([]int, len(headings))}
	t.row(headings...)
	return t
}

// row adds a row; what is empty becomes a dash.
func (t *table) row(cells ...string) {
	clean := make([]string, len(cells))
	for i, cell := range cells {
		if clean[i] = plain(cell); clean[i] == "" {
			clean[i] = "-"
		}
	}
	t.add(clean)
}

// rowAsIs adds a row in which what is empty stays so.
func (t *table) rowAsIs(cells ...string) {
	clean := make([]string, len(cells))
	for i, cell := range cells {
		clean[i] = plain(cell)
	}
	t.add(clean)
}

// more adds a line to the last column of the row before.
func (t *table) more(cell string) {
	cells := make([]string, len(t.widths))
	cells[len(cells)-1] = plain(cell)
	t.add(cells)
}

func (t *table) add(cells []string) {
	for i, cell := range cells {
		if i < len(t.widths) {
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cell))
		}
	}
	t.rows = append(t.rows, cells)
}

func (t *table) flush() error {
	widths, paint := t.widths, painter(t.out)
	if width, ok := terminalWidth(t.out); ok && !t.whole {
		widths = t.fit(width)
	}
	var b strings.Builder
	for _, row := range t.rows {
		heading := !t.headed && len(t.headings) > 0
		t.headed = true
		for i, cell := range row {
			if i < len(widths) {
				if widths[i] == 0 && t.widths[i] > 0 {
					continue
				}
				cell = abbreviate(cell, widths[i])
			}
			pad := 0
			if i < len(row)-1 {
				pad = widths[i] - utf8.RuneCountInString(cell) + 2
			}
			switch {
			case heading:
				cell = paint(colourHeading, cell)
			case i < len(t.headings):
				cell = paint(colourOf(t.headings[i], cell), cell)
			}
			b.WriteString(cell)
			b.WriteString(strings.Repeat(" ", pad))
		}
		b.WriteByte('\n')
	}
	t.rows = t.rows[:0]
	_, err := io.WriteString(t.out, b.String())
	return err
}

// leastColumn is how narrow a column becomes at most, to fit a terminal.
const leastColumn = 12

// spared is the column that is left out where all of them cannot fit.
const spared = "ADDRESS"

// fit makes all columns together no wider than a terminal, as far as they can be. A column that is left out has width 0.
func (t *table) fit(width int) []int {
	widths := slices.Clone(t.widths)
	if t.narrow(widths, width) {
		return widths
	}
	if i := slices.Index(t.headings, spared); i >= 0 {
		widths = slices.Clone(t.widths)
		widths[i] = 0
		t.narrow(widths, width+2) // it needs no gap either
	}
	return widths
}

// narrow takes from the widest of the columns that may be cut until all fit, which it reports, or none of these has
// anything to give. Names are never cut: people copy them.
func (t *table) narrow(widths []int, width int) bool {
	total := 2 * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	for ; total > width; total-- {
		widest := -1
		for i, w := range widths {
			if t.flexible(i) && w > leastColumn && (widest < 0 || w >= widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return false
		}
		widths[widest]--
	}
	return true
}

// flexible reports whether a column holds text of which the beginning says enough: the last one, and some others.
func (t *table) flexible(i int) bool {
	if i == len(t.widths)-1 {
		return true
	}
	switch t.headings[i] {
	case "IMAGE", "DIGEST", "ADDRESSES", "PLATFORMS", "REASON", "MESSAGE":
		return true
	}
	return false
}

// abbreviate cuts a plain text to so many characters, and says so.
func abbreviate(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	return strings.TrimRight(string([]rune(s)[:width-1]), " ") + "…"
}

func terminalWidth(out any) (int, bool) {
	f, ok := out.(*os.File)
	if !ok || !isTerminal(f) {
		return 0, false
	}
	width, _, err := term.GetSize(int(f.Fd()))
	return width, err == nil && width > 0
}

// The colours of texts, as style.paint takes them.
const (
	colourNone    = ""
	colourHeading = "1"
	colourGood    = "32"
	colourWait    = "33"
	colourBad     = "31"
	colourDim     = "2"
)

// painter gives texts a colour where that is seen: on a terminal that knows colours, unless they are not wanted.
func painter(out any) func(colour, text string) string {
	var on style
	if isTerminal(out) {
		on = styleOf(os.Getenv)
	}
	return func(colour, text string) string {
		if colour == colourNone {
			return text
		}
		return on.paint(colour, text)
	}
}

// colourOf is the colour of a word in the columns that say how something stands.
func colourOf(heading, word string) string {
	switch heading {
	case "PHASE", "STATE", "SEVERITY", "ACTION":
	default:
		return colourNone
	}
	switch word {
	case "running", "ready", "completed", "create":
		return colourGood
	case "pending", "placed", "preparing", "backoff", "stopping", "degraded", "deleting", "deleted",
		"enrolling", "draining", "cordoned", "warning", "update", "replace", "move":
		return colourWait
	case "failed", "lost", "unknown", "offline", "delete":
		return colourBad
	case "stopped", "info", "unchanged", "keep":
		return colourDim
	}
	return colourNone
}
