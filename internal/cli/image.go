package cli

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

func (c *cli) imageCommand() *cobra.Command {
	return c.nounCommand("image", "Push, show and remove images, and log in to registries",
		"  cloudless image push hello:1 ./hello\n  cloudless image ls\n  cloudless image rm hello:1",
		c.imagePushCommand(), c.imageListCommand(), c.imageGetCommand(), c.imageRemoveCommand(), c.imageRestoreCommand(),
		c.imagePruneCommand(), c.imageLoginCommand(), c.imageLogoutCommand(), c.imageLoginsCommand())
}

func (c *cli) imageListCommand() *cobra.Command {
	var deleted bool
	var labels string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List images",
		Long: "Ls lists the images in the cluster's registry: those with a tag, and those without one that earlier revisions of\n" +
			"workloads still need for a rollback. Other commands accept digests as they are shown here. A selector matches the\n" +
			"labels that an image was built with.",
		Example: "  cloudless image ls\n  cloudless image ls --deleted\n  cloudless image ls -o json",
		Args:    command.ExactArgs(),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			images, err := listImages(ctx, cl, deleted, labels)
			if err != nil {
				return err
			}
			if deleted {
				images = slices.DeleteFunc(images, func(i *cloudlessv1.Image) bool { return i.GetStatus().GetPhase() != "deleted" })
			}
			if !c.ForPeople() {
				return command.PrintList(c.Env, images)
			}
			return c.printImages(images, deleted)
		}),
	}
	cmd.Flags().BoolVar(&deleted, "deleted", false, "list deleted images that can still be restored")
	selectorFlag(cmd, &labels, "team=web")
	return cmd
}

// listImages lists all images, optionally with the deleted ones that can still be restored.
func listImages(ctx context.Context, cl *client.Client, deleted bool, labels string) ([]*cloudlessv1.Image, error) {
	return client.AllPages(func(page *cloudlessv1.Page) ([]*cloudlessv1.Image, string, error) {
		answer, err := cl.Images().ListImages(ctx, &cloudlessv1.ListImagesRequest{Page: page, Deleted: deleted, Labels: labels})
		return answer.GetItems(), answer.GetNext(), err
	})
}

// imageUsers are the workloads that use an image, and the earlier revisions that keep it.
func imageUsers(s *cloudlessv1.ImageStatus) string {
	all := slices.Clone(s.GetUsedBy())
	for _, kept := range s.GetKeptBy() {
		workload, number, _ := strings.Cut(kept, ":")
		all = append(all, fmt.Sprintf("%s revision %s", workload, number))
	}
	return strings.Join(all, ", ")
}

func (c *cli) printImages(images []*cloudlessv1.Image, deleted bool) error {
	last := "USED BY"
	if deleted {
		last = "GONE IN"
	}
	t := terminal.NewTable(c.Stdout, "REPOSITORY", "TAG", "DIGEST", "SIZE", "PLATFORMS", "AGE", last)
	for _, image := range images {
		s := image.GetStatus()
		about := imageUsers(s)
		if deleted {
			about = command.ShortDuration(time.Until(s.GetExpireTime().AsTime()))
		}
		t.Row(s.GetRepository(), s.GetTag(), shortDigest(s.GetDigest()), terminal.Size(s.GetSize()),
			strings.Join(s.GetPlatforms(), ", "), command.Age(s.GetPushTime(), time.Now()), about)
	}
	return t.Flush()
}

func (c *cli) imageGetCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "get NAME",
		Short:   "Show one image",
		Example: "  cloudless image get hello:1 -o yaml",
		Args:    command.ExactArgs("NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			name, err := wholeImage(ctx, cl, args[0])
			if err != nil {
				return err
			}
			image, err := cl.Images().GetImage(ctx, &cloudlessv1.GetImageRequest{Name: name})
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return c.PrintObject(image)
			}
			s := image.GetStatus()
			f := terminal.NewFacts(c.Stdout)
			f.Add("Image", image.GetMetadata().GetName())
			f.Add("Digest", s.GetDigest())
			f.Add("Size", terminal.Size(s.GetSize()))
			f.Add("Platforms", strings.Join(s.GetPlatforms(), ", "))
			f.Add("Pushed", command.Age(s.GetPushTime(), time.Now())+" ago")
			f.Add("Phase", s.GetPhase())
			f.Add("Used by", imageUsers(s))
			if s.GetExpireTime() != nil {
				f.Add("Gone in", command.ShortDuration(time.Until(s.GetExpireTime().AsTime())))
			}
			return f.Flush()
		}),
	}
}

func (c *cli) imageRemoveCommand() *cobra.Command {
	var force, now bool
	cmd := &cobra.Command{
		Use:     "rm NAME...",
		Aliases: []string{"remove", "delete"},
		Short:   "Delete images; they can be restored for a day",
		Long: "Rm deletes images that nothing uses. A deleted image can be restored for a day with cloudless image restore,\n" +
			"unless --now was given. With --force, rm deletes an image even if workloads use it. Running replicas keep running.",
		Example: "  cloudless image rm hello:1\n  cloudless image rm --now hello:1 hello:2",
		Args:    command.AtLeastOne("NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			return c.ForEach(args, func(name string) error {
				whole, err := wholeImage(ctx, cl, name)
				if err != nil {
					return err
				}
				image, err := cl.Images().DeleteImage(ctx, &cloudlessv1.DeleteImageRequest{Name: whole, Force: force, Now: now})
				if err != nil {
					return err
				}
				if !c.ForPeople() {
					return c.PrintItem(image)
				}
				after := fmt.Sprintf("; restore it within %s with: cloudless image restore %s", command.ShortDuration(time.Until(image.GetStatus().GetExpireTime().AsTime())+time.Second), name)
				if now {
					after = ""
				}
				return c.Printf("image %s deleted%s\n", name, after)
			})
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "delete images even if workloads use them")
	cmd.Flags().BoolVar(&now, "now", false, "delete images for good, without a way to restore them")
	return cmd
}

func (c *cli) imageRestoreCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "restore NAME",
		Short:   "Restore a deleted image",
		Example: "  cloudless image ls --deleted\n  cloudless image restore hello:1",
		Args:    command.ExactArgs("NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			name, err := wholeImage(ctx, cl, args[0])
			if err != nil {
				return err
			}
			image, err := cl.Images().RestoreImage(ctx, &cloudlessv1.RestoreImageRequest{Name: name})
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return c.PrintObject(image)
			}
			return c.Printf("image %s restored\n", image.GetMetadata().GetName())
		}),
	}
}

func (c *cli) imagePruneCommand() *cobra.Command {
	var request cloudlessv1.PruneImagesRequest
	cmd := &cobra.Command{
		Use:     "prune",
		Short:   "Delete every image that nothing uses",
		Example: "  cloudless image prune --dry-run\n  cloudless image prune --now",
		Args:    command.ExactArgs(),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			answer, err := cl.Images().PruneImages(ctx, &request)
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return c.PrintObject(answer)
			}
			verb, freed := "deleted", "freed"
			if request.GetDryRun() {
				verb, freed = "would be deleted", "would be freed"
			}
			for _, image := range answer.GetItems() {
				if err := c.Printf("image %s %s\n", image.GetMetadata().GetName(), verb); err != nil {
					return err
				}
			}
			return c.Printf("%s %s\n", terminal.Size(answer.GetFreedBytes()), freed)
		}),
	}
	cmd.Flags().BoolVar(&request.DryRun, "dry-run", false, "only show what would be deleted")
	cmd.Flags().BoolVar(&request.Now, "now", false, "delete images for good, including deleted ones that can still be restored")
	return cmd
}

// shortDigest is a digest shortened to 12 hexadecimal digits.
func shortDigest(digest string) string {
	algorithm, value, found := strings.Cut(digest, ":")
	if !found || len(value) <= 12 {
		return digest
	}
	return algorithm + ":" + value[:12]
}

// byDigest matches a digest or its beginning, with or without the repository: web@sha256:0123456789ab,
// web@0123456789ab, sha256:0123456789ab.
var byDigest = regexp.MustCompile(`^(?:(.+)@(?:sha256:)?|sha256:)([0-9a-f]{6,64})$`)

// wholeDigest matches a repository with a whole digest.
var wholeDigest = regexp.MustCompile(`.@sha256:[0-9a-f]{64}$`)

// wholeImage completes a shortened digest, or one without its repository. It returns other names of images unchanged.
func wholeImage(ctx context.Context, cl *client.Client, name string) (string, error) {
	parts := byDigest.FindStringSubmatch(name)
	if parts == nil || wholeDigest.MatchString(name) {
		return name, nil
	}
	images, err := listImages(ctx, cl, true, "")
	if err != nil {
		return "", err
	}
	var found []string
	for _, image := range images {
		s := image.GetStatus()
		if _, value, _ := strings.Cut(s.GetDigest(), ":"); strings.HasPrefix(value, parts[2]) && (parts[1] == "" || s.GetRepository() == untagged(parts[1])) {
			whole := s.GetRepository() + "@" + s.GetDigest()
			if !slices.Contains(found, whole) {
				found = append(found, whole)
			}
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("there is no image whose digest begins as in %s: see cloudless image ls, or give the whole digest", name)
	case 1:
		return found[0], nil
	}
	slices.Sort(found)
	way := "give more of the digest"
	if sameDigest(found) {
		way = "name the repository, such as " + found[0]
	}
	return "", fmt.Errorf("%s may be any of %s: %s", name, strings.Join(found, ", "), way)
}

// sameDigest reports whether images differ only in their repositories.
func sameDigest(images []string) bool {
	_, first, _ := strings.Cut(images[0], "@")
	return !slices.ContainsFunc(images, func(image string) bool { return !strings.HasSuffix(image, "@"+first) })
}

// untagged is a repository without its tag, if it has one.
func untagged(name string) string {
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		return name[:i]
	}
	return name
}
