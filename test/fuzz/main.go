// Command fuzz runs every fuzz target of the repository until each one has been executed often enough, and all of them
// together ten million times. It prints a table and appends the total to build/bench.jsonl. Inputs that break a target are
// in its testdata/fuzz, where every later test tries them again.
//
//	make fuzz
//	make fuzz FUZZ_EXECS=200000
//	go run ./test/fuzz -execs 20000 ./internal/ingress/... ./internal/crontab
//	go run ./test/fuzz -keep 8        # also keep some inputs that reach different code, in testdata/fuzz
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// share is how much of all executions each target gets at least: 100,000 of 10,000,000.
const share = 100

func main() {
	execs := flag.Int("execs", 10_000_000, "how many executions in all; each target gets at least a hundredth of them")
	only := flag.String("run", "", "run only the targets whose package and name match this `pattern`")
	keep := flag.Int("keep", 0, "how many of the inputs that reach different code each target keeps in its testdata/fuzz")
	record := flag.Bool("record", true, "append the total to build/bench.jsonl")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	patterns := flag.Args()
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	if err := run(ctx, *execs, *keep, *only, *record, patterns); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

// target is one function Fuzz….
type target struct{ dir, pkg, name string }

func (t target) String() string { return t.pkg + "." + t.name }

// result is what one target did.
type result struct {
	target
	execs, corpus int
	took          time.Duration
	err           error
}

func run(ctx context.Context, execs, keep int, only string, record bool, patterns []string) error {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	all, err := targets(ctx, patterns)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(t target) bool { return !pattern.MatchString(t.String()) })
	if len(all) == 0 {
		return errors.New("no target matches")
	}
	each := max(execs/len(all)+1, execs/share)
	build, err := filepath.Abs(filepath.Join("build", "fuzz"))
	if err != nil {
		return err
	}
	var results []result
	for _, t := range all {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		fmt.Fprintf(os.Stderr, "fuzzing %s\n", t)
		r := fuzz(ctx, build, t, each)
		if r.err != nil {
			fmt.Fprintf(os.Stderr, "%s failed: %v\n", t, r.err)
		}
		results = append(results, r)
		if err := keepInputs(build, t, keep); err != nil {
			return err
		}
	}
	if err := table(os.Stdout, results); err != nil {
		return err
	}
	if record {
		if err := appendFigure(results); err != nil {
			return err
		}
	}
	failed := slices.DeleteFunc(slices.Clone(results), func(r result) bool { return r.err == nil })
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d targets failed; the inputs are in the testdata/fuzz of their packages", len(failed), len(results))
	}
	return nil
}

var declaration = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(\w+ \*testing\.F\)`)

// targets finds the fuzz targets of packages.
func targets(ctx context.Context, patterns []string) (all []target, err error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json=Dir,ImportPath,TestGoFiles,XTestGoFiles"}, patterns...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			Dir, ImportPath           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			text, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				return nil, err
			}
			for _, match := range declaration.FindAllSubmatch(text, -1) {
				all = append(all, target{dir: p.Dir, pkg: p.ImportPath, name: string(match[1])})
			}
		}
	}
	slices.SortFunc(all, func(a, b target) int { return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.name, b.name)) })
	return all, nil
}

// fuzz executes a target so many times.
func fuzz(ctx context.Context, build string, t target, execs int) result {
	r := result{target: t}
	binary := filepath.Join(build, strings.ReplaceAll(t.pkg, "/", "_")+".test")
	// -fuzz makes the build count what code the inputs reach. go build itself knows what is up to date.
	compile := exec.CommandContext(ctx, "go", "test", "-c", "-fuzz=.", "-o", binary, t.pkg)
	if out, err := compile.CombinedOutput(); err != nil {
		r.err = fmt.Errorf("build: %w\n%s", err, out)
		return r
	}
	// Shorter inputs are not worth much time: making each new one as short as possible takes up to a minute otherwise.
	cmd := exec.CommandContext(ctx, binary, "-test.run=^$", "-test.fuzz=^"+t.name+"$", "-test.fuzztime="+strconv.Itoa(execs)+"x",
		"-test.fuzzcachedir="+filepath.Join(build, "cache", t.pkg), "-test.fuzzminimizetime=20x")
	cmd.Dir = t.dir
	cmd.Env = append(os.Environ(), "TMPDIR="+tempDir())
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	began := time.Now()
	err := cmd.Run()
	r.took = time.Since(began)
	r.execs, r.corpus = progress(out.Bytes())
	if err != nil {
		r.err = fmt.Errorf("%w\n%s", err, tail(out.Bytes()))
	}
	return r
}

// tempDir is in memory if that is possible: some targets make files.
func tempDir() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return os.TempDir()
}

// maxKept is how large a kept input may be, in bytes.
const maxKept = 1 << 10

// keepInputs copies inputs that reach different code into the repository, where every test tries them again: short and long
// ones, until the target has so many.
func keepInputs(build string, t target, most int) error {
	found, err := filepath.Glob(filepath.Join(build, "cache", t.pkg, t.name, "*"))
	if err != nil || most == 0 {
		return err
	}
	to := filepath.Join(t.dir, "testdata", "fuzz", t.name)
	have, err := filepath.Glob(filepath.Join(to, "*"))
	if err != nil {
		return err
	}
	var inputs [][]byte
	for _, path := range found {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if len(data) <= maxKept {
			inputs = append(inputs, data)
		}
	}
	slices.SortFunc(inputs, func(a, b []byte) int { return cmp.Or(cmp.Compare(len(a), len(b)), bytes.Compare(a, b)) })
	missing := min(most-len(have), len(inputs))
	for i := range missing {
		data := inputs[(i+1)*len(inputs)/(missing+1)]
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, fmt.Sprintf("%x", sha256.Sum256(data))[:16]), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

var status = regexp.MustCompile(`^fuzz: elapsed: .*, execs: (\d+) .*\(total: (\d+)\)`)

// progress reads the last report of a target: how often it was executed, and how many inputs reach different code.
func progress(out []byte) (execs, corpus int) {
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		if found := status.FindSubmatch(lines.Bytes()); found != nil {
			execs, _ = strconv.Atoi(string(found[1]))
			corpus, _ = strconv.Atoi(string(found[2]))
		}
	}
	return execs, corpus
}

// tail is the end of the output, where the failure is.
func tail(out []byte) []byte {
	const most = 4000
	return out[max(0, len(out)-most):]
}

func table(w io.Writer, results []result) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "TARGET\tEXECUTIONS\tPER SECOND\tINPUTS\tSTATE")
	total, took := 0, time.Duration(0)
	for _, r := range results {
		state := "passed"
		if r.err != nil {
			state = "FAILED"
		}
		fmt.Fprintf(t, "%s\t%d\t%.0f\t%d\t%s\n", r.target, r.execs, float64(r.execs)/r.took.Seconds(), r.corpus, state)
		total, took = total+r.execs, took+r.took
	}
	fmt.Fprintf(t, "%d targets\t%d\t%.0f\t\t\n", len(results), total, float64(total)/took.Seconds())
	return t.Flush()
}

// appendFigure adds the total to the record of all measurements, in the form of test/bench.
func appendFigure(results []result) error {
	total, least, failed := 0, results[0], 0
	var notes []string
	for _, r := range results {
		total += r.execs
		if r.execs < least.execs {
			least = r
		}
		if r.err != nil {
			failed++
		}
		notes = append(notes, fmt.Sprintf("%s %d", r.target, r.execs))
	}
	summary := fmt.Sprintf("%d targets, %d failed, at least %d executions each (%s)", len(results), failed, least.execs, least.target)
	line, err := json.Marshal(struct {
		Name  string  `json:"name"`
		Value float64 `json:"value"`
		Unit  string  `json:"unit"`
		Floor float64 `json:"floor"`
		Ratio float64 `json:"ratio"`
		Note  string  `json:"note"`
	}{Name: "fuzz", Value: float64(total), Unit: "count", Note: strings.Join(append([]string{summary}, notes...), "; ")})
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join("build", "bench.jsonl"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(append(line, '\n'))
	return errors.Join(err, file.Close())
}
