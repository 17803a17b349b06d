package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// facts is what is known about one object, a line each. What is empty is left out.
type facts struct{ table *table }

func newFacts(out io.Writer) *facts {
	return &facts{table: &table{out: out, widths: make([]int, 2), whole: true}}
}

func (f *facts) add(what, value string) {
	if value = plain(value); value != "" {
		f.table.row(what+":", value)
	}
}

func (f *facts) flush() error { return f.table.flush() }

// pairs shows a map in a fixed order.
func pairs(m map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, key+"="+m[key])
	}
	return strings.Join(all, ", ")
}

func amounts(a *cloudlessv1.ResourceAmounts) string {
	var all []string
	for _, one := range []struct{ what, amount string }{
		{"CPU", a.GetCpu()},
		{"memory", shortQuantity(a.GetMemory())},
		{"disk", shortQuantity(a.GetDisk())},
		{"bandwidth", a.GetBandwidth()},
	} {
		if one.amount != "" {
			all = append(all, one.what+" "+one.amount)
		}
	}
	return strings.Join(all, ", ")
}

func ports(list []*cloudlessv1.Port) string {
	var all []string
	for _, p := range list {
		text := fmt.Sprint(p.GetPort())
		if p.GetProtocol() == "udp" {
			text += "/udp"
		}
		if p.GetName() != "" {
			text = p.GetName() + " " + text
		}
		if p.GetPublish() != 0 {
			text += fmt.Sprintf(" on the node's %d", p.GetPublish())
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}
