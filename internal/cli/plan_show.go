package cli

import (
	"fmt"
	"strings"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/phrase"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/policy"
	"github.com/cloudless/cloudless/internal/spec"
)

// marks are the sign and the colour of each action.
var marks = map[string]struct {
	sign   string
	colour terminal.Colour
}{
	spec.ActionCreate: {"+", terminal.Green}, spec.ActionUpdate: {"~", terminal.Yellow}, spec.ActionDelete: {"-", terminal.Red}, spec.ActionUnchanged: {"=", terminal.Dim},
	spec.ActionReplace: {"~", terminal.Yellow}, spec.ActionMove: {"~", terminal.Yellow}, spec.ActionStop: {"-", terminal.Red}, spec.ActionKeep: {"=", terminal.Dim},
}

// planText is a plan as text for people.
type planText struct {
	strings.Builder
	style terminal.Style
}

func (t *planText) line(indent int, action, format string, args ...any) {
	mark := marks[action]
	text := mark.sign + " " + fmt.Sprintf(format, args...)
	t.WriteString(strings.Repeat(" ", indent) + t.style.Paint(mark.colour, text) + "\n")
}

func (c *cli) showPlan(plan *cloudlessv1.Plan) error {
	t := &planText{style: terminal.StyleFor(c.Stdout)}
	counts := map[string]int{}
	for _, change := range plan.GetChanges() {
		counts[change.GetAction()]++
		t.change(change, c.Namespace)
	}
	t.preemptions(plan.GetPreemptions(), c.Namespace)
	if !changes(plan) {
		t.WriteString("Nothing would change.\n")
	} else {
		fmt.Fprintf(t, "Plan: %d to create, %d to update, %d to delete, %d unchanged.\n",
			counts[spec.ActionCreate], counts[spec.ActionUpdate], counts[spec.ActionDelete], counts[spec.ActionUnchanged])
	}
	_, err := terminal.Safe(c.Stdout).Write([]byte(t.String()))
	return err
}

// would is the conditional of each action.
var would = map[string]string{
	spec.ActionCreate: "would be created", spec.ActionUpdate: "would be updated", spec.ActionDelete: "would be deleted", spec.ActionUnchanged: "is unchanged",
}

func (t *planText) change(change *cloudlessv1.PlanChange, namespace string) {
	name := change.GetName()
	if change.GetNamespace() != "" && change.GetNamespace() != namespace {
		name += " in namespace " + change.GetNamespace()
	}
	t.line(0, change.GetAction(), "%s %s %s", kindWord(change), name, would[change.GetAction()])
	for _, field := range change.GetFields() {
		t.field(field)
	}
	if image := change.GetImage(); strings.Contains(image, "@") && (change.GetAction() == spec.ActionCreate || change.GetAction() == spec.ActionUpdate) {
		t.WriteString("    " + t.style.Paint(terminal.Dim, "  image "+terminal.Plain(image)) + "\n")
	}
	if change.GetAction() != spec.ActionUnchanged {
		t.steps(change.GetReplicas())
	}
	t.unplaced(change)
	for _, warning := range change.GetWarnings() {
		t.WriteString("    " + t.style.Paint(terminal.Yellow, "! "+terminal.Plain(warning)) + "\n")
	}
	for _, f := range change.GetFindings() {
		t.finding(f)
	}
	t.quota(change)
	if change.GetAction() != spec.ActionUnchanged {
		t.WriteByte('\n')
	}
}

// finding shows a rule that the object breaks.
func (t *planText) finding(f *cloudlessv1.PolicyFinding) {
	colour := terminal.Yellow
	if f.GetMode() == policy.Enforce {
		colour = terminal.Red
	}
	t.WriteString("    " + t.style.Paint(colour, "! "+terminal.Plain(findingText(f))) + "\n")
}

func findingText(f *cloudlessv1.PolicyFinding) string {
	text := policy.Words(f)
	if f.GetField() != "" {
		text = f.GetField() + ": " + text
	}
	switch f.GetMode() {
	case policy.Enforce:
		return "refused: " + text
	case policy.Record:
		return "recorded: " + text
	}
	return text
}

// kindWord is the kind of a changed object in a sentence.
func kindWord(change *cloudlessv1.PlanChange) string {
	return strings.ToLower(terminal.Plain(change.GetKind()))
}

// quota shows what the new quota of a namespace means for its replicas.
func (t *planText) quota(change *cloudlessv1.PlanChange) {
	if change.GetWoken() > 0 {
		text := "1 pending replica gets"
		if change.GetWoken() > 1 {
			text = fmt.Sprintf("%d pending replicas get", change.GetWoken())
		}
		t.line(4, spec.ActionCreate, "%s a node", text)
	}
	if len(change.GetOver()) > 0 {
		t.WriteString("    " + t.style.Paint(terminal.Yellow, "! "+overQuota(change.GetName(), change.GetOver())) + "\n")
	}
}

// field shows one changed field. An empty value means unset.
func (t *planText) field(f *cloudlessv1.FieldChange) {
	before, after := phrase.Value(f.GetBefore()), phrase.Value(f.GetAfter())
	switch {
	case f.GetBefore() == "":
		t.line(4, spec.ActionCreate, "%s: %s", terminal.Plain(f.GetPath()), after)
	case f.GetAfter() == "":
		t.line(4, spec.ActionDelete, "%s: %s", terminal.Plain(f.GetPath()), before)
	default:
		t.line(4, spec.ActionUpdate, "%s: %s -> %s", terminal.Plain(f.GetPath()), before, after)
	}
}

// steps shows what happens to replicas, with equal steps grouped into one line.
func (t *planText) steps(steps []*cloudlessv1.ReplicaStep) {
	type step struct{ action, from, to string }
	count, first := map[step]int{}, map[step]string{}
	var order []step
	for _, s := range steps {
		key := step{s.GetAction(), s.GetFromNode(), s.GetToNode()}
		if count[key]++; count[key] == 1 {
			order, first[key] = append(order, key), s.GetReplica()
		}
	}
	for _, s := range order {
		replicas := fmt.Sprintf("%d replicas", count[s])
		if count[s] == 1 {
			replicas = "replica " + first[s]
			if first[s] == "" {
				replicas = "1 replica"
			}
		}
		t.line(4, s.action, "%s", terminal.Plain(replicas+" "+stepText(s.action, s.from, s.to)))
	}
}

func stepText(action, from, to string) string {
	switch {
	case action == spec.ActionCreate && to == "", action == spec.ActionReplace && to == "":
		return action + "d; its node is chosen when its turn comes"
	case action == spec.ActionCreate:
		return "created on " + to
	case action == spec.ActionReplace:
		return "replaced on " + to
	case action == spec.ActionMove:
		return "replaced, moving from " + from + " to " + to
	case action == spec.ActionStop && from == "":
		return "given up: it has no node yet"
	case action == spec.ActionStop:
		return "stopped on " + from
	}
	return "kept on " + from
}

func (t *planText) unplaced(change *cloudlessv1.PlanChange) {
	if text := unplacedText(change); text != "" {
		t.WriteString("    " + t.style.Paint(terminal.Red, "! "+text) + "\n")
	}
}

// unplacedText says how many replicas would have no place, and why. It is empty if all have one.
func unplacedText(change *cloudlessv1.PlanChange) string {
	n := change.GetUnplaced()
	if n == 0 {
		return ""
	}
	text := "1 replica has no place"
	if n > 1 {
		text = fmt.Sprintf("%d replicas have no place", n)
	}
	if waits := change.GetWaitsFor(); waits != "" {
		return text + ": it " + terminal.Plain(waits)
	}
	return text + phrase.NoPlace(change.GetQuota(), change.GetUnplacedReasons())
}

// preemptions shows the replicas that would be preempted, and the workloads that they make room for.
func (t *planText) preemptions(all []*cloudlessv1.Preemption, namespace string) {
	if len(all) == 0 {
		return
	}
	replicas := "1 replica"
	if len(all) > 1 {
		replicas = fmt.Sprintf("%d replicas", len(all))
	}
	t.line(0, spec.ActionStop, "%s would be pushed out, by the signal and grace period of their workloads", replicas)
	for _, p := range all {
		text := fmt.Sprintf("%s of %s (priority %d) on %s, for %s (priority %d)", p.GetReplica(), inNamespace(p.GetWorkload(), p.GetNamespace(), namespace),
			p.GetPriority(), p.GetNode(), inNamespace(p.GetForWorkload(), p.GetForNamespace(), namespace), p.GetForPriority())
		if p.GetToNode() != "" {
			text += "; another takes its place on " + p.GetToNode()
		} else {
			text += "; another waits for room"
		}
		t.line(4, spec.ActionStop, "%s", terminal.Plain(text))
	}
	t.WriteByte('\n')
}

// inNamespace is a workload's name, with its namespace if that is not the current one.
func inNamespace(name, namespace, current string) string {
	if namespace != current {
		name += " in namespace " + namespace
	}
	return name
}

// tellPreemptions names the replicas that make room for the applied workloads.
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
