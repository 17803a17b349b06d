package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cloudless/cloudless/test/fleet/simulated"
)

// obey executes one command.
func obey(fleet *simulated.Fleet, changes *fanout, line string, out *voice) (quit bool, err error) {
	words := strings.Fields(line)
	if len(words) == 0 {
		return false, nil
	}
	switch what, rest := words[0], words[1:]; {
	case what == "quit" && len(rest) == 0:
		return true, nil
	case what == "changes" && len(rest) == 0:
		out.changes(changes.take())
		return false, nil
	case what == "return" && len(rest) == 0:
		for _, n := range fleet.Nodes() {
			n.Return()
		}
		out.did(what, fleet.Nodes())
		return false, nil
	case (what == "kill" || what == "pause") && len(rest) == 1:
		count, err := share(rest[0], len(fleet.Nodes()))
		if err != nil {
			return false, err
		}
		picked := fleet.Pick(count)
		for _, n := range picked {
			if what == "kill" {
				n.Kill()
			} else {
				n.Pause()
			}
		}
		out.did(what, picked)
		return false, nil
	}
	return false, fmt.Errorf("%q is no command: say kill N, pause N, return, changes or quit", line)
}

// share reads a number of nodes, or a percentage of them such as 10%.
func share(text string, of int) (int, error) {
	number, percent := strings.CutSuffix(text, "%")
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is no number of nodes: say 500 or 10%%", text)
	}
	if percent {
		n = of * min(n, 100) / 100
	}
	return n, nil
}
