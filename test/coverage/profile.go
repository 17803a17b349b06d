package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// block is a run of statements that are executed together.
type block struct {
	file       string // import path of the package and name of the file
	position   string // start and end, as "line.column,line.column"
	statements int
	reached    bool
}

func readProfile(path string) ([]block, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	all, err := parse(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

// parse reads a profile, in which a block may appear once per test binary. It returns each block once, ordered by file
// and in the order of the profile within a file.
func parse(profile io.Reader) ([]block, error) {
	var all []block
	seen := map[string]int{} // the index in all by file and position
	lines := bufio.NewScanner(profile)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "mode: ") {
		return nil, errors.Join(errors.New("line 1: not a coverage profile: it must begin with its mode"), lines.Err())
	}
	for number := 2; lines.Scan(); number++ {
		b, err := parseLine(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		key := b.file + ":" + b.position
		if at, ok := seen[key]; ok {
			all[at].reached = all[at].reached || b.reached
			continue
		}
		seen[key] = len(all)
		all = append(all, b)
	}
	slices.SortStableFunc(all, func(a, b block) int { return strings.Compare(a.file, b.file) })
	return all, lines.Err()
}

// parseLine reads "file:start,end statements count".
func parseLine(line string) (block, error) {
	words := strings.Fields(line)
	if len(words) != 3 {
		return block{}, fmt.Errorf("%q must have three words", line)
	}
	file, position, ok := strings.Cut(words[0], ":")
	if !ok {
		return block{}, fmt.Errorf("%q does not name a file and a position", words[0])
	}
	statements, err := strconv.Atoi(words[1])
	if err != nil {
		return block{}, fmt.Errorf("number of statements: %w", err)
	}
	count, err := strconv.ParseUint(words[2], 10, 64)
	if err != nil {
		return block{}, fmt.Errorf("number of executions: %w", err)
	}
	return block{file: file, position: position, statements: statements, reached: count > 0}, nil
}

// generated is the line by which Go tools know a generated file.
var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// handWritten leaves out generated files and packages that only tests use. root is the root of the repository.
func handWritten(all []block, root fs.FS) ([]block, error) {
	counts := map[string]bool{} // by file
	for _, b := range all {
		if _, known := counts[b.file]; known {
			continue
		}
		name := strings.TrimPrefix(b.file, module)
		code, err := fs.ReadFile(root, name)
		if err != nil {
			return nil, fmt.Errorf("the profile is of other sources: %w", err)
		}
		testOnly := strings.HasSuffix(path.Dir(name), "test") || strings.HasPrefix(name, "test/")
		counts[b.file] = !testOnly && !generated.Match(code)
	}
	return slices.DeleteFunc(all, func(b block) bool { return !counts[b.file] }), nil
}

func writeProfile(path string, all []block) error {
	var text strings.Builder
	text.WriteString("mode: set\n")
	for _, b := range all {
		reached := 0
		if b.reached {
			reached = 1
		}
		fmt.Fprintf(&text, "%s:%s %d %d\n", b.file, b.position, b.statements, reached)
	}
	return os.WriteFile(path, []byte(text.String()), 0o644)
}

// row is the coverage of one package, or of all.
type row struct {
	name                string
	statements, reached int
}

func (r row) percent() float64 {
	if r.statements == 0 {
		return 100
	}
	return 100 * float64(r.reached) / float64(r.statements)
}

func (r *row) add(b block) {
	r.statements += b.statements
	if b.reached {
		r.reached += b.statements
	}
}

// summarize returns one row per package, ordered by name, and the total.
func summarize(all []block) (packages []row, total row) {
	byName := map[string]*row{}
	total.name = "total"
	for _, b := range all {
		name := strings.TrimPrefix(path.Dir(b.file), module)
		if byName[name] == nil {
			byName[name] = &row{name: name}
		}
		byName[name].add(b)
		total.add(b)
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		packages = append(packages, *byName[name])
	}
	return packages, total
}

func printTable(to io.Writer, rows []row) error {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "COVERAGE\tREACHED\tSTATEMENTS\t  PACKAGE")
	for _, r := range rows {
		fmt.Fprintf(table, "%.1f %%\t%d\t%d\t  %s\n", r.percent(), r.reached, r.statements, r.name)
	}
	return table.Flush()
}
