package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// stolen is for how long whoever runs this machine has given each of its cores to others since it started, although
// there was something to do on it, in steps of 10 ms. On a machine that is nobody's guest it is 0 for good.
type stolen []time.Duration

func stolenTime() (stolen, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil, err
	}
	return parseStolen(string(stat))
}

func parseStolen(stat string) (stolen, error) {
	var all stolen
	for line := range strings.Lines(stat) {
		fields := strings.Fields(line)
		if len(fields) < 9 || !strings.HasPrefix(fields[0], "cpu") || fields[0] == "cpu" { // all together
			continue
		}
		ticks, err := strconv.ParseInt(fields[8], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("/proc/stat: %w", err)
		}
		all = append(all, time.Duration(ticks)*time.Second/ticksPerSecond)
	}
	if len(all) == 0 {
		return nil, errors.New("/proc/stat does not say what was stolen")
	}
	return all, nil
}

// since is for how long a core was away since before, of that which was away the longest.
func (s stolen) since(before stolen) (most time.Duration) {
	for i := range min(len(s), len(before)) {
		most = max(most, s[i]-before[i])
	}
	return most
}
