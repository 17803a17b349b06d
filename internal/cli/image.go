package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
)

func (c *cli) imageCommand() *cobra.Command {
	cmd := group("image", "Show the images of the cluster's registry", "  cloudless image ls", c.imageListCommand())
	cmd.Aliases = []string{"images"}
	return cmd
}

func (c *cli) imageListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List images",
		Example: "  cloudless image ls\n  cloudless image ls -o json",
		Args:    names(),
		RunE: c.withClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			images, err := client.AllPages(func(page *cloudlessv1.Page) ([]*cloudlessv1.Image, string, error) {
				answer, err := cl.Images().ListImages(ctx, &cloudlessv1.ListImagesRequest{Page: page})
				return answer.GetItems(), answer.GetNext(), err
			})
			if err != nil {
				return err
			}
			if !c.forPeople() {
				return printList(c, images)
			}
			t := newTable(c.Stdout, "REPOSITORY", "TAG", "DIGEST", "SIZE", "PLATFORMS", "AGE")
			for _, image := range images {
				s := image.GetStatus()
				t.row(s.GetRepository(), s.GetTag(), shortDigest(s.GetDigest()), size(s.GetSize()),
					strings.Join(s.GetPlatforms(), ", "), age(image.GetMetadata().GetCreateTime(), time.Now()))
			}
			return t.flush()
		}),
	}
}

// shortDigest is enough of a digest for people to tell images apart.
func shortDigest(digest string) string {
	algorithm, value, found := strings.Cut(digest, ":")
	if !found || len(value) <= 12 {
		return digest
	}
	return algorithm + ":" + value[:12]
}

// size is a number of bytes as people read it.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/1000, 0
	for value >= 999.95 && unit < len(units)-1 {
		value /= 1000
		unit++
	}
	return fmt.Sprintf("%.1f %cB", value, units[unit])
}
