package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// stolen is for how long the hypervisor has given each core of this machine to others since boot, although there was
// something to do on it, in steps of 10 ms. On a physical machine it is always 0.
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

// since is for how long a core was stolen since before, the longest of all cores.
func (s stolen) since(before stolen) (most time.Duration) {
	for i := range min(len(s), len(before)) {
		most = max(most, s[i]-before[i])
	}
	return most
}
