package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/image"
)

func (c *cli) imagePushCommand() *cobra.Command {
	var anyPlatform bool
	cmd := &cobra.Command{
		Use:   "push NAME ./PROGRAM|LAYOUT|ARCHIVE",
		Short: "Send an image to the cluster's registry",
		Long: "Push sends a static Linux program, a folder with an OCI image layout, or an archive as docker save and skopeo\n" +
			"write it (tar, also compressed with gzip). Push skips layers that the registry has already, and resumes after a\n" +
			"broken connection.",
		Example: "  cloudless image push hello:1 ./hello\n  docker save web:2 | gzip > web.tar.gz && cloudless image push web:2 web.tar.gz",
		Args:    command.ExactArgs("NAME", "PROGRAM, LAYOUT or ARCHIVE"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			name, err := image.ParseName(args[0])
			if err != nil {
				if _, other := image.ParseName(args[1]); other == nil {
					return fmt.Errorf("%w: the name comes first: cloudless image push %s %s", err, args[1], args[0])
				}
				return err
			}
			if !name.Local() {
				return fmt.Errorf("%s names another registry: this pushes to the cluster's own, so give a name without a registry", args[0])
			}
			if err := c.push(ctx, cl, name, args[1], anyPlatform); err != nil {
				return err
			}
			pushed, err := cl.Images().GetImage(ctx, &cloudlessv1.GetImageRequest{Name: args[0]})
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return c.PrintObject(pushed)
			}
			return c.Printf("image %s pushed: %s, %s\n", args[0], shortDigest(pushed.GetStatus().GetDigest()), terminal.Size(pushed.GetStatus().GetSize()))
		}),
	}
	cmd.Flags().BoolVar(&anyPlatform, "any-platform", false, "push the image even if no node can run it")
	return cmd
}

// push sends the program, layout or archive at a path to the cluster's registry.
func (c *cli) push(ctx context.Context, cl *client.Client, name image.Name, path string, anyPlatform bool) (err error) {
	source, err := image.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	if !anyPlatform {
		if err := c.checkPlatforms(ctx, cl, path, source.Platforms); err != nil {
			return err
		}
	}
	line := terminal.NewProgressLine(c.Stderr)
	defer line.Clear()
	_, err = image.Push(ctx, source.Content, name, image.PushOptions{
		Transport: cl.HTTPTransport(),
		Progress: func(done, total int64) {
			line.Show(fmt.Sprintf("sending %s: %s of %s, %d %%", path, terminal.Size(done), terminal.Size(total), done*100/max(total, 1)))
		},
	})
	if ctx.Err() != nil {
		line.Clear()
		c.Note("Interrupted: %s was not pushed, and nothing half-made is left of it.", path)
		return command.Exit(command.ExitInterrupted, nil)
	}
	if unreachable, ok := errors.AsType[*client.UnreachableError](err); ok {
		return unreachable
	}
	return err
}

// checkPlatforms refuses an image that no node can run. It accepts everything while there are no nodes.
func (c *cli) checkPlatforms(ctx context.Context, cl *client.Client, path string, offers []string) error {
	nodes, err := command.ListNodes(ctx, cl, "")
	if status.Code(err) == codes.PermissionDenied {
		return nil // who works in one namespace does not see nodes; the placement says the same later
	}
	if err != nil {
		return err
	}
	var have []string
	for _, n := range nodes {
		info := n.GetStatus().GetInfo()
		if info.GetArch() == "" {
			return nil // the node has not reported its platform yet
		}
		have = append(have, info.GetOs()+"/"+info.GetArch())
	}
	slices.Sort(have)
	have = slices.Compact(have)
	if len(have) == 0 || len(offers) == 0 || slices.ContainsFunc(offers, func(offer string) bool {
		return slices.ContainsFunc(have, func(node string) bool { return offer == node || strings.HasPrefix(offer, node+"/") })
	}) {
		return nil
	}
	_, arch, _ := strings.Cut(have[0], "/")
	return fmt.Errorf("%s is for %s, but the cluster's nodes are %s: build it for one of them (with Go: GOARCH=%s go build), or push it all the same with cloudless image push --any-platform",
		path, strings.Join(offers, ", "), strings.Join(have, ", "), arch)
}
