package usage

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

// Stats is the command cloudless stats.
func Stats(e *command.Env) *cobra.Command {
	var everywhere, once bool
	cmd := &cobra.Command{
		Use:   "stats [WORKLOAD]",
		Short: "Show what replicas use",
		Long: "Stats shows the CPUs, the memory and the traffic of running replicas. On a terminal it goes on until it is\n" +
			"interrupted; in a pipe, with --no-stream or with -o it shows them once. CPU is in CPUs: 0.50 is half of one.\n" +
			"Throttled is the part of the time in which a replica was kept from running by its CPU limit.",
		Example: "  cloudless stats\n  cloudless stats web\n  cloudless stats --no-stream -A\n  cloudless stats web -o json",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return command.Usagef(cmd, "%q is too much: %s", args[1], cmd.UseLine())
			}
			return nil
		},
		RunE: e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			request := &cloudlessv1.GetUsageRequest{Namespace: e.Namespace, Workload: strings.Join(args, "")}
			if everywhere {
				request.Namespace = ""
			}
			if !e.ForPeople() {
				now, err := cl.Workloads().GetUsage(ctx, request)
				if err != nil {
					return err
				}
				return e.PrintObject(now)
			}
			if screen, ok := e.Stdout.(*os.File); ok && terminal.IsTerminal(screen) && !once {
				return command.Interruptible(ctx, liveStats(ctx, cl, request, screen, everywhere))
			}
			return statsOnce(ctx, e.Stdout, cl, request, everywhere)
		}),
	}
	cmd.Flags().BoolVar(&once, "no-stream", false, "show usage once, even on a terminal")
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "show all namespaces")
	return cmd
}

// statsPatience limits how long statsOnce waits for a second measurement, which rates need.
const statsPatience = 5 * time.Second

// statsOnce waits until every replica was measured twice, or until statsPatience is over.
func statsOnce(ctx context.Context, out io.Writer, cl *client.Client, request *cloudlessv1.GetUsageRequest, everywhere bool) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	stream, err := cl.Workloads().WatchUsage(watching, request)
	if err != nil {
		return err
	}
	var patience *time.Timer
	seen := newRates()
	var newest *cloudlessv1.Usage
	for newest == nil || !seen.complete() {
		frame, err := stream.Recv()
		if err != nil {
			if newest != nil && ctx.Err() == nil && watching.Err() != nil {
				break // show what there is
			}
			return err
		}
		newest = frame
		seen.see(frame)
		if patience == nil { // the first frame may take any time
			patience = time.AfterFunc(statsPatience, stop)
			defer patience.Stop()
		}
	}
	return statsTable(out, seen, newest, everywhere)
}

// liveStats redraws a table for every frame.
func liveStats(ctx context.Context, cl *client.Client, request *cloudlessv1.GetUsageRequest, screen *os.File, everywhere bool) error {
	stream, err := cl.Workloads().WatchUsage(ctx, request)
	if err != nil {
		return err
	}
	seen, paper := newRates(), terminal.NewCanvas(screen, false)
	for {
		frame, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		seen.see(frame)
		var text strings.Builder
		if err := statsTable(&text, seen, frame, everywhere); err != nil {
			return err
		}
		if err := paper.Draw(strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")); err != nil {
			return err
		}
	}
}

func statsTable(out io.Writer, seen *rates, frame *cloudlessv1.Usage, everywhere bool) error {
	headings := []string{"REPLICA", "NODE", "CPU", "THROTTLED", "MEMORY", "NET RX/TX", "BLOCK R/W", "PIDS"}
	if everywhere {
		headings = append([]string{"NAMESPACE"}, headings...)
	}
	t := terminal.NewTable(out, headings...)
	for _, u := range frame.GetReplicas() {
		row := append([]string{u.GetReplica(), u.GetNode()}, seen.cells(u)...)
		if everywhere {
			row = append([]string{u.GetNamespace()}, row...)
		}
		t.Row(row...)
	}
	return t.Flush()
}
