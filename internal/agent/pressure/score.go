package pressure

// The scores of replicas lie between these: above those of the agent and of the system's programs, so that the kernel
// kills replicas first.
const (
	scoreLeast = 100
	scoreMost  = 900
	// highestPriority is the highest priority of a workload.
	highestPriority = 1000
)

// OOMScore is a replica's oom_score_adj. The kernel kills the process with the highest sum of its score and the
// thousandths of the memory that it uses. So the requested thousandths are subtracted: what counts is the use above the
// request. A priority 100 higher outweighs 6 % of the memory.
func OOMScore(priority int32, request, total int64) int {
	score := scoreMost - int64(priority)*600/highestPriority
	if total > 0 {
		score -= 1000 * min(request, total) / total
	}
	return int(min(max(score, scoreLeast), scoreMost))
}
