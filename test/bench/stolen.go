package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// stolenTime is for how long whoever runs this machine has given its cores to others since it started, although there
// was something to do on them; of all cores together, and in steps of 10 ms. It is 0 for good where nobody says so.
func stolenTime() (time.Duration, error) {
	all, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseStolen(string(all))
}

func parseStolen(stat string) (time.Duration, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, errors.New("/proc/stat does not say what was stolen")
	}
	ticks, err := strconv.ParseInt(fields[8], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/proc/stat: %w", err)
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}
