package cli

import (
	"fmt"
	"strconv"
	"strings"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

// What a plan does with a workload.
const (
	actionCreate    = "create"
	actionUpdate    = "update"
	actionDelete    = "delete"
	actionUnchanged = "unchanged"
)

// marks are the sign and the colour of what is new, changed and gone.
var marks = map[string]struct {
	sign   string
	colour terminal.Colour
}{
	actionCreate: {"+", terminal.Green}, actionUpdate: {"~", terminal.Yellow}, actionDelete: {"-", terminal.Red}, actionUnchanged: {"=", terminal.Dim},
	"replace": {"~", terminal.Yellow}, "move": {"~", terminal.Yellow}, "stop": {"-", terminal.Red}, "keep": {"=", terminal.Dim},
}

// planText is a plan for people.
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
			counts[actionCreate], counts[actionUpdate], counts[actionDelete], counts[actionUnchanged])
		t.WriteString(t.style.Paint(terminal.Dim, "Apply this and nothing else with --plan "+terminal.Plain(plan.GetFingerprint())) + "\n")
	}
	_, err := c.Stdout.Write([]byte(t.String()))
	return err
}

// would are the words for what becomes of an object.
var would = map[string]string{
	actionCreate: "would be created", actionUpdate: "would be updated", actionDelete: "would be deleted", actionUnchanged: "is unchanged",
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
	if image := change.GetImage(); strings.Contains(image, "@") && (change.GetAction() == actionCreate || change.GetAction() == actionUpdate) {
		t.WriteString("    " + t.style.Paint(terminal.Dim, "  image "+terminal.Plain(image)) + "\n")
	}
	if change.GetAction() != actionUnchanged {
		t.steps(change.GetReplicas())
	}
	t.unplaced(change)
	t.quota(change)
	if change.GetAction() != actionUnchanged {
		t.WriteByte('\n')
	}
}

// kindWord is the kind of a changed object in a sentence.
func kindWord(change *cloudlessv1.PlanChange) string {
	return strings.ToLower(terminal.Plain(change.GetKind()))
}

// quota shows what the new quota of a namespace means for its replicas.
func (t *planText) quota(change *cloudlessv1.PlanChange) {
	if change.GetWoken() > 0 {
		who := "1 replica that waits gets"
		if change.GetWoken() > 1 {
			who = fmt.Sprintf("%d replicas that wait get", change.GetWoken())
		}
		t.line(4, actionCreate, "%s a node", who)
	}
	if len(change.GetOver()) > 0 {
		t.WriteString("    " + t.style.Paint(terminal.Yellow, "! "+overQuota(change.GetName(), change.GetOver())) + "\n")
	}
}

// field shows one field. What was or becomes empty was or becomes unset.
func (t *planText) field(f *cloudlessv1.FieldChange) {
	before, after := value(f.GetBefore()), value(f.GetAfter())
	switch {
	case f.GetBefore() == "":
		t.line(4, actionCreate, "%s: %s", terminal.Plain(f.GetPath()), after)
	case f.GetAfter() == "":
		t.line(4, actionDelete, "%s: %s", terminal.Plain(f.GetPath()), before)
	default:
		t.line(4, actionUpdate, "%s: %s -> %s", terminal.Plain(f.GetPath()), before, after)
	}
}

// longestValue is how much of a value is shown.
const longestValue = 200

// value is a field's value in one line.
func value(s string) string {
	if runes := []rune(s); len(runes) > longestValue {
		s = string(runes[:longestValue]) + "…"
	}
	if s != terminal.Plain(s) {
		return strconv.Quote(s)
	}
	return s
}

// steps shows what happens to replicas, those with the same fate together.
func (t *planText) steps(steps []*cloudlessv1.ReplicaStep) {
	type fate struct{ action, from, to string }
	count, first := map[fate]int{}, map[fate]string{}
	var order []fate
	for _, s := range steps {
		f := fate{s.GetAction(), s.GetFromNode(), s.GetToNode()}
		if count[f]++; count[f] == 1 {
			order, first[f] = append(order, f), s.GetReplica()
		}
	}
	for _, f := range order {
		who := fmt.Sprintf("%d replicas", count[f])
		if count[f] == 1 {
			who = "replica " + first[f]
			if first[f] == "" {
				who = "1 replica"
			}
		}
		t.line(4, f.action, "%s", terminal.Plain(who+" "+fateText(f.action, f.from, f.to)))
	}
}

func fateText(action, from, to string) string {
	switch {
	case action == actionCreate && to == "", action == "replace" && to == "":
		return action + "d, where is decided when its turn comes"
	case action == actionCreate:
		return "created on " + to
	case action == "replace":
		return "replaced on " + to
	case action == "move":
		return "replaced, moving from " + from + " to " + to
	case action == "stop" && from == "":
		return "given up: it has no node yet"
	case action == "stop":
		return "stopped on " + from
	}
	return "kept on " + from
}

func (t *planText) unplaced(change *cloudlessv1.PlanChange) {
	n := change.GetUnplaced()
	if n == 0 {
		return
	}
	who := "1 replica has no place"
	if n > 1 {
		who = fmt.Sprintf("%d replicas have no place", n)
	}
	t.WriteString("    " + t.style.Paint(terminal.Red, "! "+who+noPlace(change.GetQuota(), change.GetUnplacedReasons())) + "\n")
}

// noPlace continues a sentence with the quota that is used up, or else with what
// speaks against each node.
func noPlace(quota string, reasons []*cloudlessv1.NodeReason) string {
	switch {
	case quota != "":
		return ": " + terminal.Plain(quota)
	case len(reasons) == 0:
		return ": it waits for room that is being made, or for a first node"
	}
	return nodeReasons(reasons)
}

// shownReasons is how many nodes a sentence names.
const shownReasons = 5

// nodeReasons continues a sentence with what speaks against each node.
func nodeReasons(reasons []*cloudlessv1.NodeReason) string {
	if len(reasons) == 0 {
		return ": the cluster has no nodes yet"
	}
	var all []string
	for i, r := range reasons {
		if i == shownReasons {
			all = append(all, fmt.Sprintf("and %d more nodes", len(reasons)-i))
			break
		}
		all = append(all, terminal.Plain(r.GetNode()+": "+r.GetReason()))
	}
	return ": " + strings.Join(all, "; ")
}
