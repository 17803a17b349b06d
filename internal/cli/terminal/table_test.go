package terminal

import (
	"strings"
	"testing"
)

func TestTableKeepsItsColumns(t *testing.T) {
	var out strings.Builder
	table := NewTable(&out, "A", "B")
	table.Row("é", "x")
	if err := table.Flush(); err != nil {
		t.Fatal(err)
	}
	table.Row("longer", "")
	if err := table.Flush(); err != nil {
		t.Fatal(err)
	}
	if want := "A  B\né  x\nlonger  -\n"; out.String() != want {
		t.Errorf("table\n%s\nwant\n%s", out.String(), want)
	}
}
