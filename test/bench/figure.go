package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// result is the result of a measurement.
type result struct {
	value, floor float64
	// notes qualify the two numbers: spreads, and further measurements.
	notes []string
	// absent is whether there is no value, for a reason in the notes.
	absent bool
	// name replaces the measurement's if something else was measured, which has no target.
	name string
}

// figure is one line of the record. Numbers are not rounded, and Value is missing if there was nothing to measure. Note
// holds everything that qualifies the numbers.
type figure struct {
	Name  string   `json:"name"`
	Value *float64 `json:"value"`
	Unit  string   `json:"unit"`
	Floor float64  `json:"floor"`
	Ratio float64  `json:"ratio"`
	Note  string   `json:"note"`

	target target
	notes  []string
}

func (m measurement) figure(r result) figure {
	f := figure{Name: m.name, Unit: m.unit, Value: &r.value, Floor: r.floor, target: m.target, notes: r.notes, Note: strings.Join(r.notes, "; ")}
	if r.floor > 0 {
		f.Ratio = r.value / r.floor
	}
	if r.absent {
		f.Value, f.Ratio = nil, 0
	}
	if r.name != "" {
		f.Name, f.target = r.name, noTarget
	}
	return f
}

// met is yes or no if there is a value and a target for it.
func (f figure) met() string {
	switch {
	case f.Value == nil || f.target.met == nil:
		return "-"
	case f.target.met(*f.Value, f.Floor):
		return "yes"
	}
	return "no"
}

// round keeps the useful digits of a number.
func round(x float64) float64 {
	if x >= 1000 {
		return math.Round(x)
	}
	return math.Round(x*100) / 100
}

func (f figure) shownValue() string {
	if f.Value == nil {
		return "none"
	}
	return fmt.Sprint(round(*f.Value))
}

// sample is one quantity measured several times.
type sample []float64

// quantile is the value below which the given part of the sample lies.
func (s sample) quantile(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	at := q * float64(len(sorted)-1)
	below := int(at)
	above := min(below+1, len(sorted)-1)
	return sorted[below] + (sorted[above]-sorted[below])*(at-float64(below))
}

func (s sample) median() float64 { return s.quantile(0.5) }

// spread describes the sample in words.
func (s sample) spread(name string) string {
	return fmt.Sprintf("%s: %.4g, 10%% %.4g, 90%% %.4g, of %d", name, s.median(), s.quantile(0.1), s.quantile(0.9), len(s))
}

// printTable prints the figures for people.
func printTable(to io.Writer, figures []figure) error {
	if len(figures) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tVALUE\tUNIT\tFLOOR\tRATIO\tTARGET\tMET")
	for _, f := range figures {
		fmt.Fprintf(table, "%s\t%s\t%s\t%g\t%.2f\t%s\t%s\n", f.Name, f.shownValue(), f.Unit, round(f.Floor), f.Ratio, f.target.text, f.met())
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, f := range figures {
		for _, note := range f.notes {
			if _, err := fmt.Fprintf(to, "%s: %s\n", f.Name, note); err != nil {
				return err
			}
		}
	}
	return nil
}

// appendFigure adds a line to the record of all runs.
func appendFigure(path string, f figure) error {
	line, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode %s: %w", f.Name, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("record %s: %w", f.Name, err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("record %s: %w", f.Name, err)
	}
	_, err = file.Write(append(line, '\n'))
	return errors.Join(err, file.Close())
}

// target is what a figure should reach. It is compared with unrounded numbers: 0.596 is less than 0.6, although a table
// with two digits shows the same.
type target struct {
	text string
	met  func(value, floor float64) bool
}

var noTarget = target{text: "none"}

func under(limit float64) target {
	return target{fmt.Sprintf("under %g", limit), func(value, _ float64) bool { return value < limit }}
}

func atMost(limit float64) target {
	return target{fmt.Sprintf("at most %g", limit), func(value, _ float64) bool { return value <= limit }}
}

func exactly(want float64) target {
	return target{fmt.Sprintf("%g", want), func(value, _ float64) bool { return value == want }}
}

func ratioAtMost(limit float64) target {
	return target{fmt.Sprintf("ratio at most %g", limit), func(value, floor float64) bool { return value <= limit*floor }}
}

func ratioAtLeast(limit float64) target {
	return target{fmt.Sprintf("ratio at least %g", limit), func(value, floor float64) bool { return floor > 0 && value >= limit*floor }}
}

func atMostFloorPlus(more float64) target {
	return target{fmt.Sprintf("at most floor + %g", more), func(value, floor float64) bool { return value <= floor+more }}
}
