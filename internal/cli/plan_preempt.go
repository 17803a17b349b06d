package cli

import (
	"fmt"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

// preemptions shows who would be pushed out, and for whom.
func (t *planText) preemptions(all []*cloudlessv1.Preemption, namespace string) {
	if len(all) == 0 {
		return
	}
	replicas := "1 replica"
	if len(all) > 1 {
		replicas = fmt.Sprintf("%d replicas", len(all))
	}
	t.line(0, "stop", "%s would be pushed out, by the signal and grace period of their workloads", replicas)
	for _, p := range all {
		text := fmt.Sprintf("%s of %s (priority %d) on %s, for %s (priority %d)", p.GetReplica(), inNamespace(p.GetWorkload(), p.GetNamespace(), namespace),
			p.GetPriority(), p.GetNode(), inNamespace(p.GetForWorkload(), p.GetForNamespace(), namespace), p.GetForPriority())
		if p.GetToNode() != "" {
			text += "; another takes its place on " + p.GetToNode()
		} else {
			text += "; another waits for room"
		}
		t.line(4, "stop", "%s", terminal.Plain(text))
	}
	t.WriteByte('\n')
}

// inNamespace is a workload's name, with its namespace if that is not the usual one.
func inNamespace(name, namespace, usual string) string {
	if namespace != usual {
		name += " in namespace " + namespace
	}
	return name
}

// tellPreemptions says who makes room for what was applied.
func (c *cli) tellPreemptions(all []*cloudlessv1.Preemption) error {
	for _, p := range all {
		if err := c.Printf("%s of %s (priority %d) on %s makes room for %s (priority %d)\n", terminal.Plain(p.GetReplica()),
			terminal.Plain(inNamespace(p.GetWorkload(), p.GetNamespace(), c.Namespace)), p.GetPriority(), terminal.Plain(p.GetNode()),
			terminal.Plain(inNamespace(p.GetForWorkload(), p.GetForNamespace(), c.Namespace)), p.GetForPriority()); err != nil {
			return err
		}
	}
	return nil
}
