package terminal

import (
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cloudless/cloudless/internal/spec"
)

// Table writes aligned columns. Rows that are added after a flush keep the widths of the columns as far as they fit.
// On a terminal the table has colours and is no wider than the terminal; elsewhere it is plain and nothing is cut.
type Table struct {
	out      io.Writer
	headings []string
	widths   []int
	rows     [][]string
	headed   bool // the headings have been written
	fullText bool // never cut to the terminal's width
}

func NewTable(out io.Writer, headings ...string) *Table {
	t := &Table{out: out, headings: headings, widths: make([]int, len(headings))}
	t.Row(headings...)
	return t
}

// NewPlainTable makes a table without headings.
func NewPlainTable(out io.Writer, columns int) *Table {
	return &Table{out: out, widths: make([]int, columns)}
}

// ShowFullText lets the table be wider than the terminal, so that no text is cut.
func (t *Table) ShowFullText() { t.fullText = true }

// Empty reports whether there is no row beside the headings.
func (t *Table) Empty() bool { return len(t.rows) <= 1 }

// Reserve makes the columns wide enough for these cells, and returns where the last column begins.
func (t *Table) Reserve(cells ...string) (indent int) {
	for i, cell := range cells {
		t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cell))
		if i < len(cells)-1 {
			indent += t.widths[i] + 2
		}
	}
	return indent
}

// Row adds a row. An empty cell becomes a dash.
func (t *Table) Row(cells ...string) {
	clean := make([]string, len(cells))
	for i, cell := range cells {
		if clean[i] = Plain(cell); clean[i] == "" {
			clean[i] = "-"
		}
	}
	t.add(clean)
}

// RowAsIs adds a row in which empty cells stay empty.
func (t *Table) RowAsIs(cells ...string) {
	clean := make([]string, len(cells))
	for i, cell := range cells {
		clean[i] = Plain(cell)
	}
	t.add(clean)
}

// Continue adds a line to the last column of the previous row.
func (t *Table) Continue(cell string) {
	cells := make([]string, len(t.widths))
	cells[len(cells)-1] = Plain(cell)
	t.add(cells)
}

func (t *Table) add(cells []string) {
	for i, cell := range cells {
		if i < len(t.widths) {
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cell))
		}
	}
	t.rows = append(t.rows, cells)
}

// Flush writes the rows that were added since the last flush.
func (t *Table) Flush() error {
	widths, on := t.widths, StyleFor(t.out)
	if width, ok := terminalWidth(t.out); ok && !t.fullText {
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
				cell = on.Paint(Bold, cell)
			case i < len(t.headings):
				cell = on.Paint(colourOf(t.headings[i], cell), cell)
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

// leastColumn is the width below which no column is cut.
const leastColumn = 12

// spared is the column that is left out if the table still does not fit.
const spared = "ADDRESS"

// fit is the widths with which the table fits a terminal, as far as it can. A column that is left out has width 0.
func (t *Table) fit(width int) []int {
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

// narrow takes from the widest column that may be cut until all fit. It reports false if they cannot. Names are never
// cut: people copy them.
func (t *Table) narrow(widths []int, width int) bool {
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

// flexible reports whether a column may be cut: the last one, and some that hold text whose beginning is enough.
func (t *Table) flexible(i int) bool {
	if i == len(t.widths)-1 {
		return true
	}
	switch t.headings[i] {
	case "IMAGE", "DIGEST", "ADDRESSES", "PLATFORMS", "REASON", "MESSAGE":
		return true
	}
	return false
}

// colourOf is the colour of a state in the columns that hold states.
func colourOf(heading, word string) Colour {
	switch heading {
	case "PHASE", "STATE", "SEVERITY", "ACTION":
	default:
		return noColour
	}
	switch word {
	case spec.PhaseRunning, spec.NodeReady, spec.PhaseCompleted, spec.ActionCreate:
		return Green
	case spec.PhaseRunning + ", not ready", spec.PhasePending, spec.PhasePlaced, spec.PhasePreparing, spec.PhaseBackoff, spec.PhaseStopping, spec.PhaseDegraded, spec.PhaseDeleting,
		spec.NodeEnrolling, spec.NodeDraining, spec.NodeCordoned, spec.ActionUpdate, spec.ActionReplace, spec.ActionMove, "deleted", "warning":
		return Yellow
	case spec.PhaseFailed, spec.PhaseLost, spec.PhaseUnknown, spec.NodeOffline, spec.ActionDelete:
		return Red
	case spec.PhaseStopped, spec.ActionUnchanged, spec.ActionKeep, "info":
		return Dim
	}
	return noColour
}
