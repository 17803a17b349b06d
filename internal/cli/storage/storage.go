// Package storage has the commands about the disks below the object store: status, scrub and repair.
//
// It must not know other commands.
package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// Storage is the command cloudless storage.
func Storage(e *command.Env) *cobra.Command {
	return command.Group("storage", "Show, check and repair the disks of the object store",
		"  cloudless storage status\n  cloudless storage scrub one\n  cloudless storage repair",
		statusCommand(e), scrubCommand(e), repairCommand(e))
}

func service(cl *client.Client) v1.StorageServiceClient {
	return client.Service(cl, v1.NewStorageServiceClient)
}

func statusCommand(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show capacity, what lacks copies and why, and repairs",
		Long: "Status shows the disks of the nodes, which data has fewer copies than it should have and why, and how long it takes\n" +
			"until it has them.",
		Example: "  cloudless storage status\n  cloudless storage status -o json",
		Args:    command.ExactArgs(),
		RunE: e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			status, err := service(cl).GetStorageStatus(ctx, &v1.GetStorageStatusRequest{})
			if err != nil {
				return err
			}
			if !e.ForPeople() {
				return e.PrintObject(status)
			}
			return show(e, status, time.Now())
		}),
	}
}

func show(e *command.Env, s *v1.StorageStatus, now time.Time) error {
	f := terminal.NewFacts(e.Stdout)
	f.Add("Objects", fmt.Sprintf("%d, %s", s.GetObjects(), spec.HumanBytes(s.GetBytes())))
	f.Add("Copies", copies(s))
	f.Add("Repair", repair(s, now))
	if s.GetGarbageChunks() > 0 {
		f.Add("Garbage", fmt.Sprintf("%s to be deleted in a while", spec.Count(int(s.GetGarbageChunks()), "chunk")))
	}
	f.Add("Servers", servers(s))
	if err := f.Flush(); err != nil {
		return err
	}
	for _, reason := range s.GetReasons() {
		if err := e.Printf("- %s\n", terminal.Plain(reason)); err != nil {
			return err
		}
	}
	if len(s.GetNodes()) == 0 {
		e.Note("no node stores data yet")
		return nil
	}
	if err := e.Section("Nodes", nodes(e, s, now)); err != nil {
		return err
	}
	return e.Section("Classes", classes(e, s))
}

// copies says whether all data has the copies that it should have.
func copies(s *v1.StorageStatus) string {
	var lack []string
	if n := s.GetUnreachable(); n > 0 {
		lack = append(lack, fmt.Sprintf("%s on no node that answers", spec.Count(int(n), "chunk")))
	}
	if n := s.GetUnderReplicated(); n > 0 {
		lack = append(lack, fmt.Sprintf("%s of %d with too few copies", spec.Count(int(n), "chunk"), s.GetChunks()))
	}
	if len(lack) == 0 {
		return fmt.Sprintf("complete (%s)", spec.Count(int(s.GetChunks()), "chunk"))
	}
	return strings.Join(lack, ", ")
}

// repair says how long the copying takes; nothing if nothing is copied.
func repair(s *v1.StorageStatus, now time.Time) string {
	if s.GetRepairBytesLeft() == 0 {
		return ""
	}
	text := fmt.Sprintf("%s left at %s/s", spec.HumanBytes(s.GetRepairBytesLeft()), spec.HumanBytes(s.GetRepairRate()))
	if s.GetRepairEnd() != nil {
		text += ", done in " + command.ShortDuration(s.GetRepairEnd().AsTime().Sub(now))
	}
	return text
}

func servers(s *v1.StorageStatus) string {
	if s.GetLeader() == "" {
		return strings.Join(s.GetServers(), ", ") + " (none leads)"
	}
	return fmt.Sprintf("%s (%s leads)", strings.Join(s.GetServers(), ", "), s.GetLeader())
}

func nodes(e *command.Env, s *v1.StorageStatus, now time.Time) *terminal.Table {
	t := terminal.NewTable(e.Stdout, "NODE", "STATE", "CLASS", "ZONE", "USED", "FREE", "CAPACITY", "CHUNKS", "SCRUBBED", "DAMAGED", "PROBLEM")
	for _, n := range s.GetNodes() {
		scrubbed, damaged := "", ""
		if n.GetScrubTime() != nil {
			scrubbed = command.Age(n.GetScrubTime(), now) + " ago"
		}
		if n.GetDamaged() > 0 {
			damaged = fmt.Sprint(n.GetDamaged())
		}
		t.Row(n.GetNode(), n.GetState(), n.GetClass(), n.GetZone(), spec.HumanBytes(n.GetUsed()), spec.HumanBytes(n.GetFree()),
			spec.HumanBytes(n.GetCapacity()), fmt.Sprint(n.GetChunks()), scrubbed, damaged, n.GetProblem())
	}
	return t
}

func classes(e *command.Env, s *v1.StorageStatus) *terminal.Table {
	type sum struct {
		nodes                int
		used, free, capacity int64
	}
	sums := map[string]sum{}
	for _, n := range s.GetNodes() {
		class := cmp.Or(n.GetClass(), "unknown")
		c := sums[class]
		sums[class] = sum{c.nodes + 1, c.used + n.GetUsed(), c.free + n.GetFree(), c.capacity + n.GetCapacity()}
	}
	t := terminal.NewTable(e.Stdout, "CLASS", "NODES", "USED", "FREE", "CAPACITY")
	for _, class := range slices.Sorted(maps.Keys(sums)) {
		c := sums[class]
		t.Row(class, fmt.Sprint(c.nodes), spec.HumanBytes(c.used), spec.HumanBytes(c.free), spec.HumanBytes(c.capacity))
	}
	return t
}

func scrubCommand(e *command.Env) *cobra.Command {
	var rate string
	cmd := &cobra.Command{
		Use: "scrub [NODE...]", Short: "Read and check all data of nodes",
		Long: "Scrub reads every chunk on the disks of the named nodes, or of all nodes, and checks it. Damaged chunks are replaced\n" +
			"by copies of others. This happens by itself every week.",
		Example: "  cloudless storage scrub\n  cloudless storage scrub one --rate 200Mi",
		RunE: e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			stream, err := service(cl).ScrubStorage(ctx, &v1.ScrubStorageRequest{Nodes: args, Rate: rate})
			if err != nil {
				return err
			}
			damaged, err := follow(e, stream, "scrubbing", scrubbed)
			if damaged > 0 && err == nil {
				err = fmt.Errorf("%s found on the nodes; copies of others replace what was damaged: see cloudless storage status", spec.Count(int(damaged), "damaged chunk"))
			}
			return err
		}),
	}
	cmd.Flags().StringVar(&rate, "rate", "", "`bytes` a second that each node reads, such as 200Mi")
	return cmd
}

func repairCommand(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "repair", Short: "Copy data with too few copies at once",
		Long: "Repair copies data that has too few copies without the usual delay, in which a node may come back, and shows how far\n" +
			"that is. The copying goes on if the command is interrupted.",
		Example: "  cloudless storage repair",
		Args:    command.ExactArgs(),
		RunE: e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			stream, err := service(cl).RepairStorage(ctx, &v1.RepairStorageRequest{})
			if err != nil {
				return err
			}
			_, err = follow(e, stream, "repairing", repaired)
			return err
		}),
	}
}

// scrubbed and repaired say what has come of the work.
func scrubbed(p *v1.StorageProgress) string {
	return fmt.Sprintf("%s done, %d damaged", spec.HumanBytes(p.GetDone()), p.GetDamaged())
}

func repaired(p *v1.StorageProgress) string {
	if p.GetDone() == 0 {
		return "nothing was to be copied"
	}
	return spec.HumanBytes(p.GetDone()) + " done"
}

// follow shows progress until the work has ended, and returns how many chunks were found damaged.
func follow(e *command.Env, stream grpc.ServerStreamingClient[v1.StorageProgress], doing string, result func(*v1.StorageProgress) string) (damaged int64, err error) {
	line := terminal.NewProgressLine(e.Stderr)
	defer line.Clear()
	for {
		p, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return damaged, nil
		}
		if err != nil {
			return damaged, err
		}
		if p.GetFinished() {
			damaged += p.GetDamaged()
		}
		if !e.ForPeople() {
			if err := e.PrintItem(p); err != nil {
				return damaged, err
			}
			continue
		}
		what := strings.TrimSpace(doing + " " + p.GetNode())
		line.Show(fmt.Sprintf("%s: %s of %s (%d %%)", what, spec.HumanBytes(p.GetDone()), spec.HumanBytes(p.GetTotal()), p.GetDone()*100/max(p.GetTotal(), 1)))
		if p.GetMessage() != "" {
			line.Clear()
			e.Note("%s", terminal.Plain(strings.TrimSpace(p.GetNode()+" "+p.GetMessage())))
		}
		if p.GetFinished() {
			line.Clear()
			if err := e.Printf("%s: %s\n", what, result(p)); err != nil {
				return damaged, err
			}
		}
	}
}
