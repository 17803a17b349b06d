package object

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

func (w *work) printPieces(answer *v1.LocateObjectResponse) error {
	t := terminal.NewTable(w.Stdout, "OFFSET", "SIZE", "COPIES", "NODES", "HASH")
	for _, p := range answer.GetPieces() {
		t.Row(fmt.Sprint(p.GetOffset()), spec.HumanBytes(p.GetSize()), fmt.Sprintf("%d of %d", len(p.GetNodes()), p.GetCopies()),
			strings.Join(p.GetNodes(), ", "), p.GetHash()[:min(16, len(p.GetHash()))])
	}
	if t.Empty() {
		w.Note("object %s is empty, so no node has anything of it", terminal.Plain(answer.GetObject().GetKey()))
		return nil
	}
	return t.Flush()
}

func listCommand(e *command.Env) *cobra.Command {
	var recursive, versions bool
	cmd := &cobra.Command{
		Use: "ls BUCKET[/PREFIX]", Short: "List objects",
		Long: "Ls lists the objects of a bucket whose keys begin with a prefix. It shows keys up to the next slash only once, like\n" +
			"a folder, unless -r is given.",
		Example: "  cloudless object ls photos\n  cloudless object ls photos/2026/ -r\n  cloudless object ls photos/cat.jpg --versions",
		Args:    command.ExactArgs("BUCKET[/PREFIX]"),
		RunE: with(e, func(ctx context.Context, w *work, cmd *cobra.Command, args []string) error {
			p, err := parsePlace(cmd, args[0])
			if err != nil {
				return err
			}
			request := &v1.ListObjectsRequest{Bucket: p.bucket, Prefix: p.key, Versions: versions}
			if !recursive && !versions {
				request.Delimiter = "/"
			}
			if !w.ForPeople() {
				return w.listAll(ctx, request)
			}
			return w.printList(ctx, request, versions)
		}),
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "list all objects, not one line for each folder")
	cmd.Flags().BoolVar(&versions, "versions", false, "list old versions and deleted objects, too")
	return cmd
}

// listAll prints one list for programs.
func (w *work) listAll(ctx context.Context, request *v1.ListObjectsRequest) error {
	whole := &v1.ListObjectsResponse{}
	err := w.each(ctx, request, func(page *v1.ListObjectsResponse) error {
		whole.Items, whole.Prefixes = append(whole.Items, page.GetItems()...), append(whole.Prefixes, page.GetPrefixes()...)
		return nil
	})
	if err != nil {
		return err
	}
	return w.PrintObject(whole)
}

// printList prints a table for each page, so that a long list begins at once.
func (w *work) printList(ctx context.Context, request *v1.ListObjectsRequest, versions bool) error {
	empty := true
	err := w.each(ctx, request, func(page *v1.ListObjectsResponse) error {
		headings := []string{"KEY", "SIZE", "PUT"}
		if versions {
			headings = append(headings, "VERSION", "STATE")
		}
		t := terminal.NewTable(w.Stdout, headings...)
		now := time.Now()
		for _, folder := range page.GetPrefixes() {
			t.Row(terminal.Plain(folder), "", "")
		}
		for _, o := range page.GetItems() {
			row := []string{terminal.Plain(o.GetKey()), spec.HumanBytes(o.GetSize()), command.Age(o.GetTime(), now) + " ago"}
			if versions {
				state := ""
				if o.GetDeleteMarker() {
					state = "deleted"
				}
				row = append(row, o.GetVersion(), state)
			}
			t.Row(row...)
		}
		if t.Empty() {
			return nil
		}
		empty = false
		return t.Flush()
	})
	if err == nil && empty {
		w.Note("no objects in bucket %s%s", request.GetBucket(), beginning(request.GetPrefix()))
	}
	return err
}

func beginning(prefix string) string {
	if prefix == "" {
		return ""
	}
	return fmt.Sprintf(" begin with %s", terminal.Plain(prefix))
}
