package systemd

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// OOMScore is the oom_score_adj of the service. It makes the kernel kill nearly everything else first when the machine
// runs out of memory, containers before all. Each process that outlives the service sets its own.
const OOMScore = -900

// Protect gives this process the score of the service if it was started otherwise. Only root may do that.
func Protect() error {
	const file = "/proc/self/oom_score_adj"
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("protect this process from a lack of memory: %w", err)
	}
	if score, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && score <= OOMScore {
		return nil
	}
	if err := os.WriteFile(file, strconv.AppendInt(nil, OOMScore, 10), 0); err != nil {
		return fmt.Errorf("protect this process from a lack of memory: %w", err)
	}
	return nil
}
