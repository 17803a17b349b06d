package spec

import (
	"strconv"
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// HumanBytes formats an amount of bytes for people: exactly if that is short, as for amounts that people chose, else
// rounded down to one decimal, so that it never promises more than there is. Programs read FormatBytes.
func HumanBytes(n int64) string {
	const short = 4 // digits
	exact := FormatBytes(n)
	if len(strings.TrimRight(exact, "KMGTPi")) <= short || n < 0 {
		return exact
	}
	for _, u := range byteUnits[:binaryUnits] {
		unit := int64(u.factor)
		if n < unit {
			continue
		}
		whole, tenth := n/unit, n%unit*10/unit
		if tenth == 0 || whole >= 100 {
			return strconv.FormatInt(whole, 10) + u.suffix
		}
		return strconv.FormatInt(whole, 10) + "." + strconv.FormatInt(tenth, 10) + u.suffix
	}
	return exact
}

// Count is a number of things in words, such as "3 replicas".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// OutOfMemory says that a program was OOM-killed, and what to do. The limit is that of the workload, empty if it has
// none. Every part of Cloudless uses these words.
func OutOfMemory(limit string) string {
	if limit == "" {
		return "It ran out of memory (OOM) and has no limit of its own: the node had none left; set spec.resources.requests.memory, or use a node with more"
	}
	return "It ran out of memory (OOM): its limit is " + limit + "; raise spec.resources.limits.memory, or make it use less"
}

// ExitReason is why a program ended as far as its exit code does not say it.
func ExitReason(exit *v1.Exit) string {
	if exit.GetReason() == "" && exit.GetOomKilled() {
		return "It ran out of memory (OOM)" // from an agent of an older version
	}
	return exit.GetReason()
}

// Hint is a command for people to run, with the namespace that the message is about.
func Hint(namespace, command string) string {
	if namespace == "" || namespace == DefaultNamespace {
		return command
	}
	return command + " -n " + namespace
}
