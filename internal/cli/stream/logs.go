package stream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

type logsFlags struct {
	follow, timestamps, noPrefix, all, raw bool
	tail                                   int32
	since, until, replica                  string
}

// Logs is the command logs.
func Logs(e *command.Env) *cobra.Command {
	c := commands{e}
	var f logsFlags
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Show the output of a workload's replicas",
		Long: "Logs shows the output of a workload's running replicas, merged by time, or of the newest one if all have ended.\n" +
			"With more than one replica, every line begins with the replica's name. The output of ended replicas is kept for a\n" +
			"while; --all shows it, too.\n\n" +
			"On a terminal, control characters are shown as text such as ^[, except for colours, because they could change what\n" +
			"the terminal shows or does. --raw sends them. Files and pipes always get the output as it is.",
		Example: "  cloudless logs -f --tail 20 web\n  cloudless logs --all web\n  cloudless logs --since 5m --timestamps web\n" +
			"  cloudless logs --since 2026-01-02T15:00:00Z --until 2026-01-02T16:00:00Z web",
		Args: command.ExactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := f.request(cmd, c.Namespace, args[0], time.Now())
			if err != nil {
				return command.Usagef(cmd, "%w", err)
			}
			return c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				if !c.ForPeople() {
					return command.Interruptible(ctx, c.logEntries(ctx, cl, request))
				}
				return command.Interruptible(ctx, c.logs(ctx, cl, f, request))
			})(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&f.follow, "follow", "f", false, "keep showing new output")
	flags.Int32Var(&f.tail, "tail", 0, "show only the last `lines` of each replica")
	flags.StringVar(&f.since, "since", "", "show only output since this `time`, such as 5m (ago) or 2006-01-02T15:04:05Z")
	flags.StringVar(&f.until, "until", "", "show only output before this `time`")
	flags.BoolVarP(&f.timestamps, "timestamps", "t", false, "show when each line was printed")
	flags.BoolVarP(&f.all, "all", "a", false, "include replicas that have ended")
	flags.StringVar(&f.replica, "replica", "", "show only this `replica`")
	flags.BoolVar(&f.raw, "raw", false, "send control characters to the terminal, too")
	flags.BoolVar(&f.noPrefix, "no-prefix", false, "never show the names of replicas")
	return cmd
}

func (f *logsFlags) request(cmd *cobra.Command, namespace, workload string, now time.Time) (*cloudlessv1.LogsRequest, error) {
	request := &cloudlessv1.LogsRequest{Namespace: namespace, Workload: workload, Replica: f.replica, Follow: f.follow, Ended: f.all}
	if cmd.Flags().Changed("tail") {
		if f.tail < 0 {
			return nil, errors.New("--tail must not be negative")
		}
		request.Tail = &f.tail
	}
	for _, bound := range []struct {
		flag, value string
		to          **timestamppb.Timestamp
	}{{"--since", f.since, &request.Since}, {"--until", f.until, &request.Until}} {
		if bound.value == "" {
			continue
		}
		at, err := command.ParseTime(bound.value, now)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", bound.flag, err)
		}
		*bound.to = timestamppb.New(at)
	}
	return request, nil
}

// Output prints the output of all replicas of a workload.
func Output(ctx context.Context, e *command.Env, cl *client.Client, meta *cloudlessv1.Metadata) error {
	c := commands{e}
	return c.logs(ctx, cl, logsFlags{all: true}, &cloudlessv1.LogsRequest{
		Namespace: meta.GetNamespace(), Workload: meta.GetName(), Ended: true,
	})
}

// logEntries prints the API's own entries.
func (c *commands) logEntries(ctx context.Context, cl *client.Client, request *cloudlessv1.LogsRequest) error {
	for entry, err := range cl.LogEntries(ctx, request) {
		if err != nil {
			return err
		}
		if err := c.PrintItem(entry); err != nil {
			return err
		}
	}
	return nil
}

func (c *commands) logs(ctx context.Context, cl *client.Client, f logsFlags, request *cloudlessv1.LogsRequest) error {
	printer := &logPrinter{out: bufio.NewWriter(c.Stdout), timestamps: f.timestamps, quiet: f.noPrefix, harmless: !f.raw && terminal.IsTerminal(c.Stdout)}
	if f.replica == "" && !f.noPrefix {
		replicas, err := command.ListReplicas(ctx, cl, &cloudlessv1.ListReplicasRequest{
			Selection: &cloudlessv1.Selection{Namespace: request.GetNamespace()}, Workload: request.GetWorkload(), Ended: f.all,
		})
		if err != nil {
			return err
		}
		printer.expect(replicas)
	}
	missing := map[string]bool{} // replicas with incomplete output
	for line, err := range cl.Logs(ctx, request) {
		switch {
		case err != nil:
			return errors.Join(printer.out.Flush(), err)
		case line.Missing != "":
			missing[line.Replica] = true
			err = printer.out.Flush()
			c.Note("cloudless: the output of %s is not complete: %s", line.Replica, terminal.Plain(line.Missing))
		default:
			if f.follow {
				delete(missing, line.Replica) // its output resumes where it stopped
			}
			err = printer.print(line)
			// While following, every line is shown at once.
			if f.follow {
				err = errors.Join(err, printer.out.Flush())
			}
		}
		if err != nil {
			return err
		}
	}
	if err := printer.out.Flush(); err != nil {
		return err
	}
	if len(missing) > 0 {
		return command.Exit(command.ExitError, nil)
	}
	return nil
}

// logTime has a fixed width, so that lines stay aligned.
const logTime = "2006-01-02T15:04:05.000000Z"

// logPrinter writes lines, and prefixes them with the replica's name if there is more than one replica.
type logPrinter struct {
	out        *bufio.Writer
	timestamps bool
	quiet      bool // never prefix
	harmless   bool // keep control characters from a terminal

	prefix bool
	only   string // the first replica seen
	width  int    // of the longest name
}

// expect sets prefix and width for the known replicas.
func (p *logPrinter) expect(replicas []*cloudlessv1.Replica) {
	replicas = ofNewestWorkload(replicas)
	p.prefix = len(replicas) > 1
	for _, replica := range replicas {
		p.width = max(p.width, len(replica.GetMetadata().GetName()))
	}
}

// ofNewestWorkload drops replicas of earlier workloads with the same name, whose output is not shown. The replicas are
// in order of creation.
func ofNewestWorkload(replicas []*cloudlessv1.Replica) []*cloudlessv1.Replica {
	if len(replicas) == 0 {
		return nil
	}
	newest := replicas[len(replicas)-1].GetSpec().GetWorkloadUid()
	return slices.DeleteFunc(replicas, func(r *cloudlessv1.Replica) bool { return r.GetSpec().GetWorkloadUid() != newest })
}

func (p *logPrinter) print(line client.LogLine) error {
	if p.only == "" {
		p.only = line.Replica
	}
	p.prefix = p.prefix || line.Replica != p.only
	if p.prefix && !p.quiet {
		p.width = max(p.width, len(line.Replica))
		fmt.Fprintf(p.out, "%-*s | ", p.width, terminal.Plain(line.Replica))
	}
	if p.timestamps {
		p.out.WriteString(line.Time.UTC().Format(logTime))
		p.out.WriteByte(' ')
	}
	if p.harmless {
		line.Line = terminal.HarmlessLine(line.Line)
	}
	p.out.Write(line.Line)
	return p.out.WriteByte('\n') // a bufio.Writer keeps its first error
}
