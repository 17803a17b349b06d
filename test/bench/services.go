package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"github.com/cloudless/cloudless/test/bench/traffic"
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

var trafficMeasurements = []measurement{
	{
		name: "canary_weight_error", unit: "percent", measure: measureTraffic(canaryError), target: atMost(0.5),
		what:  "by how many percentage points the canary's share of 50,000 requests through a route differs from the 5 % of its step",
		floor: "none",
	},
	{
		name: "wake", unit: "ms", measure: measureTraffic(wakeTime), target: under(50),
		what:  "from the first request by a route to a service scaled to zero to its answer, not counting the replica's own start, which is from scaling the same program from 0 to 1 by hand to its replica serving as a watch sees it; medians of 9, in turns",
		floor: "none",
	},
	{
		name: "scale_reaction", unit: "s", measure: measureTraffic(scaleReaction), target: under(15),
		what:  "from a load step to the first additional replica that serves as a watch sees it, not counting the replica's own start, which is from scaling the same program from 1 to 2 by hand; the longest of 6",
		floor: "none",
	},
}

const (
	wakeTimes     = 9
	reactionTimes = 6
)

// measureTraffic measures on a cloud of its own, whose routes answer on a free port.
func measureTraffic(of func(context.Context, *traffic.Stand) (result, error)) func(context.Context, *lab) (result, error) {
	return func(ctx context.Context, l *lab) (result, error) {
		hello, err := l.build(ctx, "hello", "./examples/hello")
		if err != nil {
			return result{}, err
		}
		c, err := l.newStage(ctx, "traffic")
		if err != nil {
			return result{}, err
		}
		defer c.close()
		plain, err := freePort()
		if err != nil {
			return result{}, err
		}
		safe, err := freePort()
		if err != nil {
			return result{}, err
		}
		if err := c.run(ctx, "cluster", "config", "set", fmt.Sprintf("ingress.httpPort=%d", plain), fmt.Sprintf("ingress.httpsPort=%d", safe)); err != nil {
			return result{}, err
		}
		if err := pushProgram(ctx, c.api, hello, shopImage); err != nil {
			return result{}, err
		}
		return of(ctx, &traffic.Stand{API: c.api, Command: c.run, Image: shopImage, Ingress: plain})
	}
}

func canaryError(ctx context.Context, s *traffic.Stand) (result, error) {
	share, requests, err := s.Canary(ctx)
	return result{value: math.Abs(share - 5), notes: []string{
		fmt.Sprintf("the new revision got %.3g%% of %d requests, which 16 clients sent on kept connections; 1 new replica beside 4 old ones", share, requests),
		"by chance alone, two of three such samples differ by less than 0.097 points",
	}}, err
}

func wakeTime(ctx context.Context, s *traffic.Stand) (result, error) {
	first, byHand, err := s.Wake(ctx, wakeTimes)
	whole, own := inMilliseconds(first), inMilliseconds(byHand)
	return result{value: whole.median() - own.median(), notes: []string{
		"the median of the request less the median of the start by hand, which is from the API call that scales from 0 to 1 until a watch shows that the replica serves",
		whole.spread("the whole request in ms"), own.spread("start by hand in ms"), "one machine; autoscale: min 0, idle 10s",
	}}, err
}

func scaleReaction(ctx context.Context, s *traffic.Stand) (result, error) {
	r, err := s.React(ctx, reactionTimes)
	whole, own := inMilliseconds(r.Times), inMilliseconds(r.ByHand)
	return result{value: (whole.quantile(1) - own.median()) / 1000, notes: []string{
		"the longest of all less the median of the start by hand, which is from the API call that scales from 1 to 2 until a watch shows that the replica serves",
		whole.spread("from the step to the replica in ms"), own.spread("start by hand in ms"),
		fmt.Sprintf("autoscale: min 1, max 4, requests %d, default windows: upWindow 0s, downWindow 5m; one replica, and a step from %d to %d requests a second at different times between the leader's decisions, which are 5 s apart",
			traffic.Each, traffic.Calm, traffic.Busy),
		fmt.Sprintf("%d requests, of which %d failed", r.Sent, r.Failed),
	}}, err
}

func inMilliseconds(all []time.Duration) (s sample) {
	for _, d := range all {
		s = append(s, milliseconds(d))
	}
	return s
}
