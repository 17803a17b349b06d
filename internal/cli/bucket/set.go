package bucket

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/spec"
)

// unlimited lifts a quota, and none removes all rules of a kind.
const unlimited, none = "unlimited", "none"

// settings are the flags that say what a bucket is like.
type settings struct {
	replicas          int32
	quota, versioning string
	expire, labels    []string
	uploadTTL         string
	encrypt           bool
}

func (f *settings) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Int32Var(&f.replicas, "replicas", 0, "on how many nodes each piece of data is, 1 to 3 (0: three, as far as there are)")
	flags.StringVar(&f.quota, "quota", "", "most `bytes` in the bucket, such as 100Gi; unlimited for no limit")
	flags.StringVar(&f.versioning, "versioning", "", "keep old versions of objects: `enabled` or suspended")
	flags.StringArrayVar(&f.expire, "expire", nil, "delete objects after a `time`, such as 720h, or tmp/=24h for keys that begin with tmp/; may be repeated; none for never")
	flags.StringVar(&f.uploadTTL, "upload-ttl", "", "`time` that an upload in parts may stay unfinished (default 168h)")
	flags.BoolVar(&f.encrypt, "encrypt", false, "encrypt what is put from now on; --encrypt=false stops that")
	flags.StringArrayVarP(&f.labels, "label", "l", nil, "label `KEY=VALUE` of the bucket; may be repeated")
}

// change puts the flags that were given into a bucket.
func (f *settings) change(cmd *cobra.Command, b *v1.Bucket) error {
	given, s := cmd.Flags().Changed, b.GetSpec()
	if given("replicas") {
		s.Replicas = f.replicas
	}
	if given("quota") {
		if s.Quota = f.quota; f.quota == unlimited {
			s.Quota = ""
		}
	}
	if given("versioning") {
		s.Versioning = f.versioning
	}
	if given("encrypt") {
		s.Encrypted = f.encrypt
	}
	if given("upload-ttl") {
		s.UploadTtl = f.uploadTTL
	}
	if given("expire") {
		s.Expiry = nil
		for _, text := range f.expire {
			if text == none && len(f.expire) == 1 {
				break
			}
			prefix, after, found := strings.Cut(text, "=")
			if !found {
				prefix, after = "", text
			}
			if after == "" {
				return command.Usagef(cmd, "--expire %q has no time: write for example 720h, or tmp/=24h", text)
			}
			s.Expiry = append(s.Expiry, &v1.ExpiryRule{Prefix: prefix, After: after})
		}
	}
	if given("label") {
		labels, err := command.ParsePairs("label", f.labels, nil)
		if err != nil {
			return command.Usagef(cmd, "%w", err)
		}
		b.Metadata.Labels = labels
	}
	return nil
}

// wanted is a new bucket by the flags, checked before it is sent.
func (f *settings) wanted(e *command.Env, cmd *cobra.Command, name string) (*v1.Bucket, error) {
	b := &v1.Bucket{ApiVersion: spec.APIVersion, Kind: spec.KindBucket, Metadata: &v1.Metadata{Name: name, Namespace: e.Namespace}, Spec: &v1.BucketSpec{}}
	if err := f.change(cmd, b); err != nil {
		return nil, err
	}
	return b, spec.Validate(b)
}

func service(cl *client.Client) v1.BucketServiceClient {
	return client.Service(cl, v1.NewBucketServiceClient)
}

// Create is the command cloudless bucket create.
func Create(e *command.Env) *cobra.Command {
	var f settings
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Make a bucket, which keeps objects on the disks of the nodes",
		Long: "Create makes a bucket. With one node, its objects have one copy; with more nodes, each piece is on up to three of them.\n" +
			"S3 clients use it with an access key, see: cloudless bucket key.",
		Example: "  cloudless bucket create photos\n" +
			"  cloudless bucket create photos --replicas 3 --quota 100Gi\n" +
			"  cloudless bucket create builds --expire 720h --expire tmp/=24h\n" +
			"  cloudless bucket create documents --versioning enabled --encrypt -n shop",
		Args: command.ExactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			wanted, err := f.wanted(e, cmd, args[0])
			if err != nil {
				return err
			}
			return e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				made, err := service(cl).CreateBucket(ctx, &v1.CreateBucketRequest{Bucket: wanted})
				if err != nil {
					return err
				}
				if !e.ForPeople() {
					return e.PrintObject(made)
				}
				return e.Printf("bucket %s created%s\nfor S3 clients, make a key with: %s\n", args[0], copies(made),
					spec.Hint(made.GetMetadata().GetNamespace(), "cloudless bucket key "+args[0]))
			})(cmd, args)
		},
	}
	f.register(cmd)
	return cmd
}

// copies says how many copies the objects of a bucket have now.
func copies(b *v1.Bucket) string {
	switch n := b.GetStatus().GetCopies(); {
	case n == 0:
		return ": it can hold nothing before a node has joined"
	case n == 1:
		return " with one copy of each object"
	default:
		return fmt.Sprintf(" with %d copies of each object", n)
	}
}

// Apply is the command cloudless bucket apply.
func Apply(e *command.Env) *cobra.Command {
	var f settings
	cmd := &cobra.Command{
		Use: "apply NAME", Short: "Make a bucket, or make an existing one like the flags say",
		Long: "Apply makes a bucket if there is none of this name. An existing one becomes as the flags say, and what no flag says\n" +
			"becomes the default. To change only some settings use bucket update, and for files use cloudless apply -f.",
		Example: "  cloudless bucket apply photos --quota 200Gi --versioning enabled",
		Args:    command.ExactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			wanted, err := f.wanted(e, cmd, args[0])
			if err != nil {
				return err
			}
			return e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				answer, err := service(cl).ApplyBucket(ctx, &v1.ApplyBucketRequest{Bucket: wanted})
				if err != nil {
					return err
				}
				if !e.ForPeople() {
					return e.PrintObject(answer.GetBucket())
				}
				return e.Printf("bucket %s %s\n", args[0], answer.GetResult())
			})(cmd, args)
		},
	}
	f.register(cmd)
	return cmd
}

// Update is the command cloudless bucket update.
func Update(e *command.Env) *cobra.Command {
	var f settings
	cmd := &cobra.Command{
		Use: "update NAME", Short: "Change some settings of a bucket",
		Long: "Update changes the settings whose flags are given, and keeps the others. Another number of replicas, another\n" +
			"expiry and encryption are for what is put from now on. A quota below what the bucket holds deletes nothing; it\n" +
			"refuses what is new.",
		Example: "  cloudless bucket update photos --quota 200Gi\n" +
			"  cloudless bucket update photos --encrypt\n" +
			"  cloudless bucket update photos --quota unlimited --expire none",
		Args: command.ExactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.ContainsFunc([]string{"replicas", "quota", "versioning", "expire", "upload-ttl", "encrypt", "label"}, cmd.Flags().Changed) {
				return command.Usagef(cmd, "nothing is to change: give --replicas, --quota, --versioning, --expire, --upload-ttl, --encrypt or --label")
			}
			return e.WithClient(func(ctx context.Context, cl *client.Client, cmd *cobra.Command, _ []string) error {
				calls := service(cl)
				old, err := calls.GetBucket(ctx, &v1.GetBucketRequest{Namespace: e.Namespace, Name: args[0]})
				if err != nil {
					return err
				}
				now := proto.CloneOf(old)
				if now.Spec == nil {
					now.Spec = &v1.BucketSpec{}
				}
				if err := f.change(cmd, now); err != nil {
					return err
				}
				if now, err = calls.UpdateBucket(ctx, &v1.UpdateBucketRequest{Bucket: now}); err != nil {
					return err
				}
				if !e.ForPeople() {
					return e.PrintObject(now)
				}
				if now.GetMetadata().GetVersion() == old.GetMetadata().GetVersion() {
					return e.Printf("bucket %s unchanged\n", args[0])
				}
				if n := old.GetStatus().GetVersions(); n > 0 && now.GetSpec().GetReplicas() != old.GetSpec().GetReplicas() {
					e.Note("What is in the bucket keeps its number of copies until it is put again.")
				}
				return e.Printf("bucket %s updated\n", args[0])
			})(cmd, args)
		},
	}
	f.register(cmd)
	return cmd
}
