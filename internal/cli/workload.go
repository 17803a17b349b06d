package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/phrase"
	"github.com/cloudless/cloudless/internal/cli/wait"
	"github.com/cloudless/cloudless/internal/spec"
)

func (c *cli) workloadCommand() *cobra.Command {
	return c.nounCommand("workload", "Show and change workloads",
		"  cloudless workload ls\n  cloudless workload get web\n  cloudless workload scale web 3",
		c.workloadListCommand(), c.workloadGetCommand(), c.workloadScaleCommand(), c.workloadAutoscaleCommand(), c.workloadRestartCommand(), c.workloadRunCommand(), c.workloadHistoryCommand(), c.rollbackCommand("rollback", "NAME", "cloudless workload rollback"), c.workloadRemoveCommand())
}

func (c *cli) workloadListCommand() *cobra.Command {
	var s scope
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List workloads",
		Example: "  cloudless workload ls\n  cloudless workload ls -A -l app=web -o json",
		Args:    command.ExactArgs(),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			workloads, err := client.AllPages(func(page *cloudlessv1.Page) ([]*cloudlessv1.Workload, string, error) {
				answer, err := cl.Workloads().ListWorkloads(ctx, &cloudlessv1.ListWorkloadsRequest{Selection: s.selection(c), Page: page})
				return answer.GetItems(), answer.GetNext(), err
			})
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return command.PrintList(c.Env, workloads)
			}
			c.NoteEmpty(len(workloads), "workloads", s.everywhere)
			return c.workloadTable(s.everywhere, workloads).Flush()
		}),
	}
	s.register(cmd)
	return cmd
}

func (c *cli) workloadTable(namespaces bool, workloads []*cloudlessv1.Workload) scopedTable {
	t := c.newScopedTable(namespaces, "NAME", "KIND", "PHASE", "RUNNING", "IMAGE", "AGE", "REASON")
	for _, w := range workloads {
		m := w.GetMetadata()
		t.row(m, m.GetName(), phrase.KindOf(w), w.GetStatus().GetPhase(), phrase.Progress(w), w.GetSpec().GetImage(),
			command.Age(m.GetCreateTime(), time.Now()), reasonOf(w, time.Now()))
	}
	return t
}

func (c *cli) workloadGetCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "get NAME",
		Short:   "Show one workload, its replicas and why they are pending",
		Example: "  cloudless workload get web\n  cloudless workload get web -o yaml",
		Args:    command.ExactArgs("NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			w, err := cl.Workloads().GetWorkload(ctx, &cloudlessv1.GetWorkloadRequest{Namespace: c.Namespace, Name: args[0]})
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return c.PrintObject(w)
			}
			replicas, err := command.ListReplicas(ctx, cl, &cloudlessv1.ListReplicasRequest{
				Selection: &cloudlessv1.Selection{Namespace: c.Namespace}, Workload: args[0],
			})
			if err != nil {
				return err
			}
			if err := c.showWorkload(w, replicas); err != nil {
				return err
			}
			return c.showRuns(ctx, cl, w)
		}),
	}
}

func (c *cli) showWorkload(w *cloudlessv1.Workload, replicas []*cloudlessv1.Replica) error {
	if err := c.workloadFacts(w, nil).Flush(); err != nil {
		return err
	}
	if err := c.whyPending(w.GetStatus()); err != nil || len(replicas) == 0 {
		return err
	}
	if err := c.Printf("\n"); err != nil {
		return err
	}
	return c.replicaTable(false, replicas).Flush()
}

func (c *cli) workloadScaleCommand() *cobra.Command {
	var w wait.Flags
	cmd := &cobra.Command{
		Use:        "scale NAME REPLICAS",
		SuggestFor: []string{"stop"},
		Short:      "Change the number of replicas",
		Example:    "  cloudless workload scale web 3\n  cloudless workload scale web 0",
		Args:       command.ExactArgs("NAME", "REPLICAS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			replicas, err := strconv.ParseInt(args[1], 10, 32)
			if err != nil || replicas < 0 {
				return command.Usagef(cmd, "%q is not a number of replicas", args[1])
			}
			return c.changeWorkload(w, plainly("scaled"), func(ctx context.Context, cl *client.Client) (*cloudlessv1.Workload, error) {
				return cl.Workloads().ScaleWorkload(ctx, &cloudlessv1.ScaleWorkloadRequest{
					Namespace: c.Namespace, Name: args[0], Replicas: new(int32(replicas)),
				})
			})(cmd, args)
		},
	}
	w.Register(cmd, "they run")
	return cmd
}

// autoscaleFlags are the settings of autoscaling. Those that are not given keep their value.
type autoscaleFlags struct {
	min, max                            int32
	cpu, memory, metric, up, down, idle string
	requests                            float64
	off                                 bool
}

func (a *autoscaleFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Int32Var(&a.min, "min", 0, "the fewest `replicas`; 0 sleeps without requests")
	f.Int32Var(&a.max, "max", 0, "the most `replicas`")
	f.StringVar(&a.cpu, "cpu", "", "`share` of the requested CPU to use, such as 70%")
	f.StringVar(&a.memory, "memory", "", "`share` of the requested memory to use, such as 80%")
	f.Float64Var(&a.requests, "requests", 0, "requests a `second` for each replica, by routes")
	f.StringVar(&a.metric, "metric", "", "own metric, as `NAME=VALUE@PORT[/PATH]`")
	f.StringVar(&a.up, "up-window", "", "how `long` a target must ask for more replicas")
	f.StringVar(&a.down, "down-window", "", "how `long` a target must ask for fewer replicas")
	f.StringVar(&a.idle, "idle", "", "how `long` without requests until it sleeps")
	f.BoolVar(&a.off, "off", false, "keep the present number of replicas from now on")
}

// settings are those of a workload with the given flags.
func (a *autoscaleFlags) settings(cmd *cobra.Command, now *cloudlessv1.Autoscale) (*cloudlessv1.Autoscale, error) {
	to := proto.CloneOf(now)
	if to == nil {
		to = &cloudlessv1.Autoscale{}
	}
	given := cmd.Flags().Changed
	if given("min") {
		to.Min = &a.min
		if a.min > 0 && !given("idle") {
			to.Idle = ""
		}
	}
	if given("max") {
		to.Max = a.max
	}
	if given("requests") {
		to.Requests = a.requests
	}
	for name, field := range map[string]struct{ from, to *string }{
		"cpu": {&a.cpu, &to.Cpu}, "memory": {&a.memory, &to.Memory}, "up-window": {&a.up, &to.UpWindow}, "down-window": {&a.down, &to.DownWindow}, "idle": {&a.idle, &to.Idle},
	} {
		if given(name) {
			*field.to = *field.from
		}
	}
	if !given("metric") {
		return to, nil
	}
	metric, ok := parseMetric(a.metric)
	if !ok {
		return nil, command.Usagef(cmd, "%q is not a metric: write NAME=VALUE@PORT or NAME=VALUE@PORT/PATH, such as queue_length=10@9090/metrics", a.metric)
	}
	to.Metric = metric
	return to, nil
}

// parseMetric reads NAME=VALUE@PORT[/PATH]. An empty text is no metric.
func parseMetric(text string) (m *cloudlessv1.AutoscaleMetric, ok bool) {
	if text == "" {
		return nil, true
	}
	name, rest, _ := strings.Cut(text, "=")
	amount, where, _ := strings.Cut(rest, "@")
	port, path, hasPath := strings.Cut(where, "/")
	value, errValue := strconv.ParseFloat(amount, 64)
	number, errPort := strconv.ParseUint(port, 10, 16)
	m = &cloudlessv1.AutoscaleMetric{Name: name, Value: value, Port: int32(number)}
	if hasPath {
		m.Path = "/" + path
	}
	return m, name != "" && errValue == nil && errPort == nil
}

func (c *cli) workloadAutoscaleCommand() *cobra.Command {
	var a autoscaleFlags
	cmd := &cobra.Command{
		Use:   "autoscale NAME",
		Short: "Let the cluster decide how many replicas there are",
		Long: "Autoscale lets the cluster choose the number of replicas of a service, between --min and --max. Of several targets,\n" +
			"the one that asks for the most replicas counts. Flags that are not given keep their value, and an empty value\n" +
			"removes a target. With --min 0, the service sleeps without replicas when its routes get no requests, and the\n" +
			"next request wakes it.",
		Example: "  cloudless workload autoscale web --min 0 --max 20 --cpu 70%\n" +
			"  cloudless workload autoscale api --max 10 --requests 200 --down-window 10m\n" +
			"  cloudless workload autoscale worker --min 1 --max 8 --metric queue_length=10@9090/metrics\n" +
			"  cloudless workload autoscale web --off",
		Args: command.ExactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			others := 0
			cmd.Flags().Visit(func(f *pflag.Flag) {
				if cmd.LocalNonPersistentFlags().Lookup(f.Name) != nil && f.Name != "off" {
					others++
				}
			})
			switch {
			case a.off && others > 0:
				return command.Usagef(cmd, "--off excludes all other settings")
			case !a.off && others == 0:
				return command.Usagef(cmd, "say what to change, such as --max 20 --cpu 70%%, or --off")
			}
			return c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				return c.autoscale(ctx, cl, cmd, args[0], &a)
			})(cmd, args)
		},
	}
	a.register(cmd)
	return cmd
}

func (c *cli) autoscale(ctx context.Context, cl *client.Client, cmd *cobra.Command, name string, a *autoscaleFlags) error {
	w, err := cl.Workloads().GetWorkload(ctx, &cloudlessv1.GetWorkloadRequest{Namespace: c.Namespace, Name: name})
	if err != nil {
		return err
	}
	request := &cloudlessv1.AutoscaleWorkloadRequest{Namespace: c.Namespace, Name: name}
	if !a.off {
		if request.Autoscale, err = a.settings(cmd, w.GetSpec().GetAutoscale()); err != nil {
			return err
		}
	}
	if w, err = cl.Workloads().AutoscaleWorkload(ctx, request); err != nil {
		return err
	}
	switch {
	case !c.ForPeople():
		return c.PrintObject(w)
	case w.GetSpec().GetAutoscale() == nil:
		return c.Printf("workload %s keeps %s from now on\n", name, spec.Count(int(w.GetSpec().GetReplicas()), "replica"))
	}
	return c.Printf("workload %s is scaled %s\n", name, spec.ScalingOf(w.GetSpec()))
}

func (c *cli) workloadRestartCommand() *cobra.Command {
	var w wait.Flags
	cmd := &cobra.Command{
		Use:     "restart NAME",
		Short:   "Replace every replica with a new one",
		Example: "  cloudless workload restart web",
		Args:    command.ExactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.changeWorkload(w, restarted, func(ctx context.Context, cl *client.Client) (*cloudlessv1.Workload, error) {
				return cl.Workloads().RestartWorkload(ctx, &cloudlessv1.RestartWorkloadRequest{Namespace: c.Namespace, Name: args[0]})
			})(cmd, args)
		},
	}
	w.Register(cmd, "the new ones run")
	return cmd
}

// restarted says that a workload was restarted, or who decides when the new replicas get the traffic.
func restarted(w *cloudlessv1.Workload) string {
	if m := w.GetMetadata(); spec.StrategyOf(w.GetSpec()) == spec.StrategyBlueGreen && w.GetSpec().GetUpdate().GetManualSwitch() {
		return fmt.Sprintf("gets new replicas, and its service leads to the old ones until you run: %s",
			spec.Hint(m.GetNamespace(), "cloudless rollout promote "+m.GetName()))
	}
	return "restarted"
}

// plainly returns the same word for every workload.
func plainly(done string) func(*cloudlessv1.Workload) string {
	return func(*cloudlessv1.Workload) string { return done }
}

// changeWorkload makes one change, prints it, and waits for it.
func (c *cli) changeWorkload(w wait.Flags, done func(*cloudlessv1.Workload) string, change func(context.Context, *client.Client) (*cloudlessv1.Workload, error)) func(*cobra.Command, []string) error {
	return c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
		workload, err := change(ctx, cl)
		if err != nil {
			return err
		}
		if c.ForPeople() {
			if err := c.Printf("workload %s %s\n", workload.GetMetadata().GetName(), done(workload)); err != nil {
				return err
			}
		}
		if w.On {
			if workload, err = w.ForWorkload(ctx, c.Env, cl, spec.ActionUpdate, workload); err != nil && !wait.EndedDeployment(err) {
				return err
			}
		}
		if c.ForPeople() {
			return err
		}
		// Programs get the workload even if the deployment failed or was rolled back.
		return cmp.Or(c.PrintObject(workload), err)
	})
}

func (c *cli) workloadRemoveCommand() *cobra.Command {
	var w wait.Flags
	cmd := &cobra.Command{
		Use:        "rm NAME...",
		SuggestFor: []string{"stop", "kill"},
		Aliases:    []string{"remove", "delete"},
		Short:      "Stop workloads and remove them",
		Example:    "  cloudless workload rm web\n  cloudless workload rm web db --wait=false",
		Args:       command.AtLeastOne("NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			var removed []*cloudlessv1.Workload
			failed := c.ForEach(args, func(name string) error {
				workload, err := cl.Workloads().DeleteWorkload(ctx, &cloudlessv1.DeleteWorkloadRequest{Namespace: c.Namespace, Name: name})
				if err == nil {
					removed = append(removed, workload)
				}
				return err
			})
			word := "is being removed"
			if w.On {
				if err := w.ForRemoval(ctx, c.Env, cl, removed...); err != nil {
					return err
				}
				word = "removed"
			}
			if !c.ForPeople() {
				if err := command.PrintList(c.Env, removed); err != nil {
					return err
				}
				return failed
			}
			for _, workload := range removed {
				if err := c.Printf("workload %s %s\n", workload.GetMetadata().GetName(), word); err != nil {
					return err
				}
			}
			return failed
		}),
	}
	w.Register(cmd, "they are gone")
	return cmd
}
