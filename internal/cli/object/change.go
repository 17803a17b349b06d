package object

import (
	"context"
	"path"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

func removeCommand(e *command.Env) *cobra.Command {
	var recursive bool
	var version string
	cmd := &cobra.Command{
		Use: "rm BUCKET/KEY...", Short: "Delete objects",
		Long: "Rm deletes objects, or with -r all objects whose keys begin with a prefix. In a bucket that keeps versions, the old\n" +
			"ones stay: --version deletes one of them for good.",
		Example: "  cloudless object rm photos/cat.jpg\n  cloudless object rm -r photos/2025/",
		Args:    command.AtLeastOne("BUCKET/KEY"),
		RunE: with(e, func(ctx context.Context, w *work, cmd *cobra.Command, args []string) error {
			if version != "" && (recursive || len(args) > 1) {
				return command.Usagef(cmd, "--version is that of one object")
			}
			return w.ForEach(args, func(arg string) error {
				if recursive {
					p, err := parsePlace(cmd, arg)
					if err != nil {
						return err
					}
					return w.removeAll(ctx, p)
				}
				p, err := parseObject(cmd, arg)
				if err != nil {
					return err
				}
				gone, err := w.remove(ctx, p, version)
				if err != nil {
					return err
				}
				return w.PrintRemoved("object", terminal.Plain(p.String()), gone, len(args) > 1)
			})
		}),
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "delete all objects whose keys begin with a prefix")
	cmd.Flags().StringVar(&version, "version", "", "delete this `version` for good")
	return cmd
}

func (w *work) remove(ctx context.Context, p place, version string) (gone *v1.DeleteObjectResponse, err error) {
	return w.objects.DeleteObject(ctx, &v1.DeleteObjectRequest{Namespace: w.Namespace, Bucket: p.bucket, Key: p.key, Version: version})
}

func (w *work) removeAll(ctx context.Context, p place) error {
	count := 0
	err := w.each(ctx, &v1.ListObjectsRequest{Bucket: p.bucket, Prefix: p.key}, func(page *v1.ListObjectsResponse) error {
		for _, o := range page.GetItems() {
			gone, err := w.remove(ctx, place{p.bucket, o.GetKey()}, "")
			if status.Code(err) == codes.NotFound {
				continue // somebody else has deleted it meanwhile
			}
			if err != nil {
				return err
			}
			if count++; !w.ForPeople() {
				if err := w.PrintItem(gone); err != nil {
					return err
				}
			}
			w.meter.Show("deleting: " + spec.Count(count, "object"))
		}
		return nil
	})
	w.meter.Clear()
	if err != nil || !w.ForPeople() {
		return err
	}
	return w.Printf("%s removed from bucket %s\n", spec.Count(count, "object"), p.bucket)
}

func copyCommand(e *command.Env) *cobra.Command {
	var o putOptions
	cmd := &cobra.Command{
		Use: "cp FROM TO", Short: "Copy an object, or a file to or from a bucket",
		Long: "Cp copies an object within its namespace; its content does not pass through this machine. A path that begins with\n" +
			"./, ../ or / is a file of this machine: then cp does what put or get does.",
		Example: "  cloudless object cp photos/cat.jpg archive/cat.jpg\n  cloudless object cp ./cat.jpg photos/cat.jpg\n  cloudless object cp photos/cat.jpg ./cat.jpg",
		Args:    command.ExactArgs("FROM", "TO"),
		RunE: with(e, func(ctx context.Context, w *work, cmd *cobra.Command, args []string) error {
			if isLocal(args[0]) {
				to, err := parsePlace(cmd, args[1])
				if err != nil {
					return err
				}
				return w.put(ctx, cmd, args[0], to, o)
			}
			from, err := parsePlace(cmd, args[0])
			if err != nil {
				return err
			}
			if isLocal(args[1]) {
				return w.get(ctx, cmd, from, "", args[1], o.recursive)
			}
			to, err := parsePlace(cmd, args[1])
			if err != nil {
				return err
			}
			if o.recursive || from.key == "" {
				return command.Usagef(cmd, "cp copies one object within the cluster: write BUCKET/KEY")
			}
			return w.copy(ctx, from, to)
		}),
	}
	cmd.Flags().BoolVarP(&o.recursive, "recursive", "r", false, "copy whole folders from or to this machine")
	return cmd
}

func (w *work) copy(ctx context.Context, from, to place) error {
	if to.key == "" || strings.HasSuffix(to.key, "/") {
		to.key += path.Base(from.key)
	}
	made, err := w.objects.CopyObject(ctx, &v1.CopyObjectRequest{
		Namespace: w.Namespace, Bucket: to.bucket, Key: to.key, SourceBucket: from.bucket, SourceKey: from.key,
	})
	if err != nil {
		return err
	}
	if !w.ForPeople() {
		return w.PrintObject(made)
	}
	return w.Printf("object %s copied to %s: %s\n", terminal.Plain(from.String()), terminal.Plain(to.String()), spec.HumanBytes(made.GetSize()))
}
