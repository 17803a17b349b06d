package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// explainFlags are the flags of explain.
type explainFlags struct {
	files []string
	node  string
	all   bool
}

func (c *cli) explainCommand() *cobra.Command {
	var q explainFlags
	cmd := &cobra.Command{
		Use:   "explain WORKLOAD | explain -f FILE",
		Short: "Show why replicas run where they do, or why they are pending",
		Long: "Explain evaluates every node for one more replica of a workload: the filters that refuse the node, or its rank\n" +
			"and its score by component. Then it says why each replica is on its node, and what would help pending replicas.\n" +
			"The answer is about the cluster as it is now. Explain changes and moves nothing.\n" +
			"For a daemon it shows which nodes suit, and what keeps it from suitable nodes that do not run it.\n\n" +
			"With -f it explains workloads as they would be if the file were applied.",
		Example:    "  cloudless explain web\n  cloudless explain web --node box1\n  cloudless explain web --all -o json\n  cloudless explain -f app.yaml",
		SuggestFor: []string{"why"},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 1:
				return command.Usagef(cmd, "%q is too much: %s", args[1], cmd.UseLine())
			case len(args) == 1 && len(q.files) > 0:
				return command.Usagef(cmd, "name a workload or give a file with -f, not both")
			case len(args)+len(q.files) == 0:
				return command.Usagef(cmd, "WORKLOAD is missing: %s", cmd.UseLine())
			}
			var workloads []*cloudlessv1.Workload
			if len(q.files) > 0 {
				read, err := c.readFiles(cmd, q.files)
				if err != nil {
					return err
				}
				if workloads = spec.WorkloadsIn(read.GetObjects()); len(workloads) == 0 {
					return errors.New("there is nothing to explain: the input holds no workload")
				}
			}
			return c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				if len(args) == 1 {
					return c.explain(ctx, cl, args[0], q)
				}
				return c.explainFiles(ctx, cl, workloads, q)
			})(cmd, args)
		},
	}
	cmd.Flags().StringArrayVarP(&q.files, "file", "f", nil, "`file` or folder with workloads to explain before applying, - for standard input; may be repeated")
	cmd.Flags().StringVar(&q.node, "node", "", "show only this `node` and its replicas")
	cmd.Flags().BoolVar(&q.all, "all", false, "show every node, not only the first few that accept and refuse")
	return cmd
}

func (c *cli) explain(ctx context.Context, cl *client.Client, name string, q explainFlags) error {
	answer, err := cl.Explanations().GetExplanation(ctx, &cloudlessv1.GetExplanationRequest{Namespace: c.Namespace, Name: name, Node: q.node, All: q.all})
	if err != nil {
		return err
	}
	if !c.ForPeople() {
		return c.PrintObject(answer)
	}
	return c.showExplanation(answer, q)
}

// explainFiles explains workloads that are not applied yet.
func (c *cli) explainFiles(ctx context.Context, cl *client.Client, workloads []*cloudlessv1.Workload, q explainFlags) error {
	var answers []*cloudlessv1.Explanation
	for _, w := range workloads {
		answer, err := cl.Explanations().ExplainWorkload(ctx, &cloudlessv1.ExplainWorkloadRequest{Workload: w, Node: q.node, All: q.all})
		if err != nil {
			return fmt.Errorf("explain workload %s: %w", w.GetMetadata().GetName(), err)
		}
		answers = append(answers, answer)
	}
	switch {
	case c.ForPeople():
	case len(answers) == 1:
		return c.PrintObject(answers[0])
	default:
		return command.PrintList(c.Env, answers)
	}
	for i, answer := range answers {
		if i > 0 {
			if err := c.Printf("\n"); err != nil {
				return err
			}
		}
		if err := c.showExplanation(answer, q); err != nil {
			return err
		}
	}
	return nil
}

func (c *cli) showExplanation(e *cloudlessv1.Explanation, q explainFlags) error {
	phase := e.GetPhase()
	if phase == "" {
		phase = "not applied yet"
	}
	if err := c.Printf("workload %s is %s: %s\n", e.GetName(), phase, terminal.Plain(e.GetSummary())); err != nil {
		return err
	}
	shows := []func(*cloudlessv1.Explanation, explainFlags) error{c.showTaking, c.showRefusing, c.showReplicas, c.showHelp}
	if e.GetEveryNode() {
		shows = []func(*cloudlessv1.Explanation, explainFlags) error{c.showEach, c.showReplicas, c.showHelp}
	}
	for _, show := range shows {
		if err := show(e, q); err != nil {
			return err
		}
	}
	return nil
}

// showTaking shows the nodes that would take a replica, the best first.
func (c *cli) showTaking(e *cloudlessv1.Explanation, _ explainFlags) error {
	preferred, avoided := false, false
	ranked := slices.DeleteFunc(slices.Clone(e.GetNodes()), func(n *cloudlessv1.NodeExplanation) bool {
		preferred = preferred || n.GetScore().GetAffinity() != 0
		avoided = avoided || n.GetScore().GetAvoided() != 0
		return n.GetRank() == 0
	})
	if len(ranked) == 0 {
		return nil
	}
	w := e.GetWeights()
	headings := []string{"RANK", "NODE"}
	if preferred {
		headings = append(headings, "PREFERENCES")
	}
	if avoided {
		headings = append(headings, "TAINTS")
	}
	for _, key := range e.GetLevels() {
		headings = append(headings, "SAME "+strings.ToUpper(key))
	}
	headings = append(headings, "SCORE",
		weighted("LOCALITY", w.GetLocality()), weighted("RELIABILITY", w.GetReliability()), weighted("COST", w.GetCost()),
		weighted("UTILIZATION", w.GetUtilization()), weighted("NETWORK", w.GetNetwork()), "BEFORE THE NEXT BECAUSE")
	t := terminal.NewTable(c.Stdout, headings...)
	for _, n := range ranked {
		t.Row(nodeRow(n, len(e.GetLevels()), preferred, avoided)...)
	}
	about := e.GetAbout()
	if e.GetQuota() != "" {
		about += " if the quota had room for it"
	}
	heading := fmt.Sprintf("%s would take %s, by strategy %s:", ofNodes(e.GetTakingCount(), e), about, e.GetStrategy())
	if n := e.GetYieldingCount(); n > 0 {
		heading = strings.TrimSuffix(heading, ":") + fmt.Sprintf(", and %d more if others were pushed out:", n)
	}
	if err := c.Section(heading, t); err != nil {
		return err
	}
	if left := e.GetTakingCount() + e.GetYieldingCount() - int32(len(ranked)); left > 0 && len(ranked) > 1 {
		return c.Printf("and %d more: see them with --all\n", left)
	}
	return nil
}

// ofNodes is a phrase such as "2 of 3 nodes".
func ofNodes(n int32, e *cloudlessv1.Explanation) string {
	if e.GetNodeCount() == 1 {
		return fmt.Sprintf("%d of 1 node", n)
	}
	return fmt.Sprintf("%d of %d nodes", n, e.GetNodeCount())
}

// weighted is the heading of a score component, with its weight.
func weighted(name string, weight float64) string {
	return name + " ×" + strconv.FormatFloat(weight, 'g', 3, 64)
}

func nodeRow(n *cloudlessv1.NodeExplanation, levels int, preferred, avoided bool) []string {
	s := n.GetScore()
	row := []string{strconv.Itoa(int(n.GetRank())), n.GetNode()}
	number := func(n int32) string {
		if s == nil {
			return ""
		}
		return strconv.Itoa(int(n))
	}
	if preferred {
		row = append(row, number(s.GetAffinity()))
	}
	if avoided {
		row = append(row, number(s.GetAvoided()))
	}
	for k := range levels {
		same := s.GetSameNode() // the last level, unless nodes have no levels
		if k < len(s.GetSame()) {
			same = s.GetSame()[k]
		}
		row = append(row, number(same))
	}
	for _, part := range []float64{s.GetTotal(), s.GetLocality(), s.GetReliability(), s.GetCost(), s.GetUtilization(), s.GetNetwork()} {
		text := ""
		if s != nil {
			text = strconv.FormatFloat(part, 'f', 3, 64)
		}
		row = append(row, text)
	}
	why := n.GetBeforeNext()
	if len(n.GetDisplaces()) > 0 {
		why = displaced(n.GetDisplaces()) + " would have to go first"
	}
	return append(row, why)
}

// displaced names the replicas that would have to go.
func displaced(all []*cloudlessv1.Displaced) string {
	var names []string
	for _, d := range all {
		names = append(names, fmt.Sprintf("%s of priority %d", d.GetReplica(), d.GetPriority()))
	}
	return strings.Join(names, ", ")
}

// showRefusing shows the nodes that refuse, and counts the omitted ones by filter.
func (c *cli) showRefusing(e *cloudlessv1.Explanation, q explainFlags) error {
	t := c.refusals(e, func(*cloudlessv1.NodeExplanation) bool { return true })
	refusing := e.GetNodeCount() - e.GetTakingCount() - e.GetYieldingCount()
	if !t.Empty() {
		verb := "refuse"
		if refusing == 1 {
			verb = "refuses"
		}
		if err := c.Section(fmt.Sprintf("%s %s %s:", ofNodes(refusing, e), verb, e.GetAbout()), t); err != nil {
			return err
		}
	}
	return c.showLeftOut(e, q)
}

// refusals has a row for each filter that refuses one of the nodes.
func (c *cli) refusals(e *cloudlessv1.Explanation, of func(*cloudlessv1.NodeExplanation) bool) *terminal.Table {
	t := terminal.NewTable(c.Stdout, "NODE", "FILTER", "REASON")
	t.ShowFullText()
	for _, n := range e.GetNodes() {
		if n.GetRank() > 0 || !of(n) {
			continue
		}
		for k, r := range n.GetRefusals() {
			name := n.GetNode()
			if k > 0 {
				name = ""
			}
			t.RowAsIs(name, r.GetFilter(), r.GetReason())
		}
	}
	return t
}

// showLeftOut counts the refusing nodes that are not listed.
func (c *cli) showLeftOut(e *cloudlessv1.Explanation, q explainFlags) error {
	if q.node != "" {
		return nil
	}
	listed := map[string]int32{} // by first filter
	for _, n := range e.GetNodes() {
		if len(n.GetRefusals()) > 0 {
			listed[n.GetRefusals()[0].GetFilter()]++
		}
	}
	for _, g := range e.GetRefused() {
		if left := g.GetCount() - listed[g.GetFilter()]; left > 0 {
			if err := c.Printf("and %d more by %s, as %s: %s\n", left, g.GetFilter(), terminal.Plain(g.GetNode()), terminal.Plain(g.GetReason())); err != nil {
				return err
			}
		}
	}
	return nil
}

// showEach shows the suitable nodes that cannot take a daemon's replica, and the nodes that do not suit it.
func (c *cli) showEach(e *cloudlessv1.Explanation, q explainFlags) error {
	heading := "One on every node that suits: " + verbOf(ofNodes(e.GetSuitingCount(), e), e.GetSuitingCount(), "does", "do")
	if err := c.Printf("\n%s\n", terminal.StyleFor(c.Stdout).Paint(terminal.Bold, heading)); err != nil {
		return err
	}
	suits := (*cloudlessv1.NodeExplanation).GetSuits
	if t := c.refusals(e, suits); !t.Empty() {
		cannot := e.GetSuitingCount() - e.GetTakingCount() - e.GetYieldingCount()
		if err := c.Section(verbOf(ofNodes(cannot, e), cannot, "suits and cannot", "suit and cannot")+" take one:", t); err != nil {
			return err
		}
	}
	if t := c.refusals(e, func(n *cloudlessv1.NodeExplanation) bool { return !suits(n) }); !t.Empty() {
		unsuited := e.GetNodeCount() - e.GetSuitingCount()
		if err := c.Section(verbOf(ofNodes(unsuited, e), unsuited, "does", "do")+" not suit:", t); err != nil {
			return err
		}
	}
	return c.showLeftOut(e, q)
}

// verbOf appends the singular or the plural of a verb.
func verbOf(text string, n int32, one, many string) string {
	if n == 1 {
		return text + " " + one
	}
	return text + " " + many
}

// showReplicas shows why each replica is on its node.
func (c *cli) showReplicas(e *cloudlessv1.Explanation, _ explainFlags) error {
	if len(e.GetReplicas()) == 0 {
		return nil
	}
	t := terminal.NewTable(c.Stdout, "REPLICAS", "NODE", "PLACED WITH", "SCORE NOW", "WHY")
	t.ShowFullText()
	for _, r := range e.GetReplicas() {
		t.Row(namedReplicas(r), r.GetNode(), totalOf(r.GetPlacedScore()), totalOf(r.GetScore()), r.GetReason())
	}
	if err := c.Section("Why replicas are where they are:", t); err != nil {
		return err
	}
	if n := e.GetReplicasLeftOut(); n > 0 {
		return c.Printf("and on %d more nodes: see them with --all or --node NAME\n", n)
	}
	return nil
}

func totalOf(s *cloudlessv1.NodeScore) string {
	if s == nil {
		return ""
	}
	return strconv.FormatFloat(s.GetTotal(), 'f', 3, 64)
}

// namedReplicas names a few replicas of a group and counts the others.
func namedReplicas(r *cloudlessv1.ReplicaExplanation) string {
	const most = 2
	names := r.GetReplicas()[:min(most, len(r.GetReplicas()))]
	left := int(r.GetCount()) - len(names)
	switch {
	case len(names) == 0:
		return fmt.Sprintf("%d to be made", left)
	case left > 0:
		return fmt.Sprintf("%s and %d more", strings.Join(names, ", "), left)
	}
	return strings.Join(names, ", ")
}

func (c *cli) showHelp(e *cloudlessv1.Explanation, q explainFlags) error {
	if len(e.GetHelp()) == 0 || q.node != "" && !e.GetEveryNode() {
		return nil // only a daemon's advice is about that node
	}
	if err := c.Printf("\n%s\n", terminal.StyleFor(c.Stdout).Paint(terminal.Bold, "What would help:")); err != nil {
		return err
	}
	for _, sentence := range e.GetHelp() {
		if err := c.Printf("- %s\n", terminal.Plain(sentence)); err != nil {
			return err
		}
	}
	return nil
}
