package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
)

// measureConnect and the others run benchmarks of package nodenet, which make a machine of their own of network
// namespaces.
func measureConnect(ctx context.Context, _ *lab) (result, error) {
	through, straight, err := benchmark(ctx, "BenchmarkConnect", "5x", "virtual/s", "direct/s")
	return result{value: through, floor: straight}, err
}

func measureProgram(ctx context.Context, _ *lab) (result, error) {
	took, byNft, err := benchmark(ctx, "BenchmarkProgramServices", "5x", "program-ms", "nft-ms")
	return result{value: took, floor: byNft}, err
}

func measureServiceUpdate(ctx context.Context, _ *lab) (result, error) {
	took, _, err := benchmark(ctx, "BenchmarkUpdateService", "1000x", "update-ms", "")
	return result{value: took}, err
}

// benchmark runs a Go benchmark of package nodenet and returns one or two of its metrics.
func benchmark(ctx context.Context, name, times, first, second string) (a, b float64, err error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^"+name+"$", "-benchtime", times, "./internal/nodenet")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w: %s", name, err, out)
	}
	read := func(metric string) (value float64) {
		if metric == "" {
			return 0
		}
		found := regexp.MustCompile(`([0-9.]+) ` + regexp.QuoteMeta(metric)).FindSubmatch(out)
		if found == nil {
			err = errors.Join(err, fmt.Errorf("%s does not tell %s: %s", name, metric, out))
			return 0
		}
		value, _ = strconv.ParseFloat(string(found[1]), 64) // the pattern lets nothing else through
		return value
	}
	a, b = read(first), read(second)
	return a, b, err
}
