package usage

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// order is the sort order of replicas, the highest usage first.
type order string

const (
	byCPU    order = "cpu"
	byMemory order = "memory"
)

func parseOrder(s string) (order, error) {
	switch o := order(s); o {
	case byCPU, byMemory:
		return o, nil
	}
	return "", fmt.Errorf("replicas cannot be sorted by %q: use cpu or memory", s)
}

// historyLength is the number of frames in a plot: about a minute.
const historyLength = 60

// topView collects frames and draws them.
type topView struct {
	terminal.Style
	rates   *rates
	newest  *cloudlessv1.Usage
	history map[string][]float64
}

func newTopView(s terminal.Style) *topView {
	return &topView{Style: s, rates: newRates(), history: map[string][]float64{}}
}

// see adds a frame.
func (v *topView) see(frame *cloudlessv1.Usage) {
	v.newest = frame
	v.rates.see(frame)
	kept := map[string][]float64{}
	add := func(key string, value float64) {
		values := append(v.history[key], value)
		kept[key] = values[max(0, len(values)-historyLength):]
	}
	for _, n := range frame.GetNodes() {
		used, _ := v.load(n)
		add("node cpu "+n.GetNode(), used.cpu)
		add("node memory "+n.GetNode(), used.memory)
	}
	for _, u := range frame.GetReplicas() {
		add("cpu "+u.GetUid(), u.GetCpu())
		add("memory "+u.GetUid(), float64(u.GetMemoryBytes()))
	}
	v.history = kept
}

type load struct{ cpu, memory float64 }

// load is the usage and the capacity of a node.
func (*topView) load(n *cloudlessv1.NodeUsage) (used, capacity load) {
	read := func(r *cloudlessv1.NodeResources) load {
		millis, _ := spec.ParseCPU(r.GetCpu()) // 0 if unset
		bytes, _ := spec.ParseBytes(r.GetMemory())
		return load{cpu: float64(millis) / 1000, memory: float64(bytes)}
	}
	return read(n.GetUsage()), read(n.GetCapacity())
}

// lines draws the picture for a screen of that size.
func (v *topView) lines(width int, by order, now time.Time) []string {
	plot := min(max((width-60)/3, 8), historyLength)
	lines := []string{v.title(width, by, now), ""}
	lines = append(lines, v.nodeLines(plot)...)
	lines = append(lines, "")
	return append(lines, v.replicaLines(plot, by)...)
}

func (v *topView) title(width int, by order, now time.Time) string {
	left := fmt.Sprintf("cloudless top  %s  nodes %d, replicas %d  by %s",
		now.Format(time.TimeOnly), len(v.newest.GetNodes()), len(v.newest.GetReplicas()), by)
	right := "c CPU  m memory  q quit"
	gap := width - len(left) - len(right)
	if gap < 2 {
		return v.Paint(terminal.Bold, left)
	}
	return v.Paint(terminal.Bold, left) + strings.Repeat(" ", gap) + right
}

func (v *topView) nodeLines(plot int) []string {
	const barWidth = 10
	rows := [][]string{{"NODE", "STATE", "CPU", "", "", "MEMORY", "", "", "REPLICAS"}}
	for _, n := range v.newest.GetNodes() {
		used, capacity := v.load(n)
		rows = append(rows, []string{
			terminal.Plain(n.GetNode()), terminal.Plain(n.GetState()),
			v.Bar(part(used.cpu, capacity.cpu), barWidth), cpus(used.cpu) + " / " + cpus(capacity.cpu),
			v.Spark(v.history["node cpu "+n.GetNode()], capacity.cpu, plot),
			v.Bar(part(used.memory, capacity.memory), barWidth), humanBytes(used.memory) + " / " + humanBytes(capacity.memory),
			v.Spark(v.history["node memory "+n.GetNode()], capacity.memory, plot),
			fmt.Sprint(n.GetReplicas()),
		})
	}
	return v.align(rows)
}

func (v *topView) replicaLines(plot int, by order) []string {
	replicas := slices.Clone(v.newest.GetReplicas())
	slices.SortStableFunc(replicas, func(a, b *cloudlessv1.ReplicaUsage) int {
		if by == byMemory {
			return cmp.Compare(b.GetMemoryBytes(), a.GetMemoryBytes())
		}
		return cmp.Compare(b.GetCpu(), a.GetCpu())
	})
	rows := [][]string{{"REPLICA", "NODE", "CPU", "", "THROTTLED", "MEMORY", "", "NET RX/TX", "BLOCK R/W", "PIDS"}}
	for _, u := range replicas {
		cells := v.rates.cells(u)
		cpu, memory := v.history["cpu "+u.GetUid()], v.history["memory "+u.GetUid()]
		most := float64(u.GetMemoryLimitBytes())
		if most == 0 {
			most = slices.Max(memory)
		}
		rows = append(rows, []string{
			terminal.Plain(u.GetNamespace() + "/" + u.GetReplica()), terminal.Plain(u.GetNode()), cells[0], v.Spark(cpu, max(1, slices.Max(cpu)), plot), cells[1],
			cells[2], v.Spark(memory, most, plot), cells[3], cells[4], cells[5],
		})
	}
	return v.align(rows)
}

func part(used, capacity float64) float64 {
	if capacity <= 0 {
		return 0
	}
	return used / capacity
}

// align aligns cells in columns. The first row is the heading.
func (v *topView) align(rows [][]string) []string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for j, cell := range row {
			widths[j] = max(widths[j], terminal.Width(cell))
		}
	}
	lines := make([]string, len(rows))
	for i, row := range rows {
		var b strings.Builder
		for j, cell := range row {
			b.WriteString(cell)
			if j < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[j]-terminal.Width(cell)+2))
			}
		}
		lines[i] = b.String()
	}
	lines[0] = v.Paint(terminal.Bold, lines[0])
	return lines
}
