package terminal

import (
	"io"
	"maps"
	"slices"
	"strings"
)

// Facts lists the properties of one object, one per line. It omits empty values.
type Facts struct{ table *Table }

func NewFacts(out io.Writer) *Facts {
	return &Facts{table: &Table{out: out, widths: make([]int, 2), fullText: true}}
}

func (f *Facts) Add(what, value string) {
	if value = Plain(value); value != "" {
		f.table.Row(what+":", value)
	}
}

func (f *Facts) Flush() error { return f.table.Flush() }

// Pairs is a map in one line, sorted by key.
func Pairs(m map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, key+"="+m[key])
	}
	return strings.Join(all, ", ")
}
