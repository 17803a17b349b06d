package bucket

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// The roles of keys that no flag names.
const (
	defaultRole  = "operator"
	readOnlyRole = "viewer"
)

// Key is the command cloudless bucket key.
func Key(e *command.Env) *cobra.Command {
	var role, ttl, purpose string
	var readOnly bool
	cmd := &cobra.Command{
		Use: "key BUCKET...", Short: "Make an access key for S3 clients",
		Long: "Key makes an access key for buckets, and shows how S3 clients use it. Its secret is shown only now. What it may do is\n" +
			"what its role permits with objects and buckets in the namespace: operator reads and writes, viewer only reads.",
		Example: "  cloudless bucket key photos\n" +
			"  cloudless bucket key photos --read-only --ttl 720h --purpose \"the web site\"\n" +
			"  cloudless bucket key photos -o json\n" +
			"  cloudless bucket key ls\n  cloudless bucket key rm clk2v5q6...",
		Args: command.AtLeastOne("BUCKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if readOnly && cmd.Flags().Changed("role") {
				return command.Usagef(cmd, "--read-only is role %s: leave it out, or --role", readOnlyRole)
			}
			if readOnly {
				role = readOnlyRole
			}
			return e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				made, err := service(cl).CreateAccessKey(ctx, &v1.CreateAccessKeyRequest{
					Namespace: e.Namespace, Spec: &v1.AccessKeySpec{Role: role, Buckets: args, Purpose: purpose}, Ttl: ttl,
				})
				if err != nil {
					return err
				}
				if !e.ForPeople() {
					return e.PrintObject(made)
				}
				return showKey(e, made, args[0])
			})(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&role, "role", defaultRole, "`role` that says what the key may do")
	flags.BoolVar(&readOnly, "read-only", false, "make a key that only reads")
	flags.StringVar(&ttl, "ttl", "", "`time` after which it ends, such as 720h (default: it stays)")
	flags.StringVar(&purpose, "purpose", "", "what it is for, in your `words`")
	cmd.AddCommand(listKeys(e), removeKeys(e))
	return cmd
}

// showKey shows a new key and how the usual clients take it.
func showKey(e *command.Env, made *v1.CreateAccessKeyResponse, bucket string) error {
	id, endpoint := made.GetAccessKey().GetMetadata().GetName(), "https://SERVER:7700"
	if all := made.GetEndpoints(); len(all) > 0 {
		endpoint = all[0]
	}
	f := terminal.NewFacts(e.Stdout)
	f.Add("Access key", id)
	f.Add("Secret", made.GetSecret())
	f.Add("Endpoint", strings.Join(made.GetEndpoints(), ", "))
	f.Add("Region", made.GetRegion())
	f.Add("May", may(made.GetAccessKey()))
	f.Add("Until", end(made.GetAccessKey(), time.Now()))
	if err := f.Flush(); err != nil {
		return err
	}
	e.Note("The secret is shown only now: keep it in a safe place.")
	var lines strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&lines, format+"\n", args...) }
	line("\n# The certificate of the cluster, which clients must trust:")
	line("cloudless ca show > ca.pem")
	line("\n# aws and restic:")
	line("export AWS_ACCESS_KEY_ID=%s AWS_SECRET_ACCESS_KEY=%s", id, made.GetSecret())
	line("export AWS_DEFAULT_REGION=%s AWS_CA_BUNDLE=ca.pem AWS_ENDPOINT_URL=%s", made.GetRegion(), endpoint)
	line("aws s3 ls s3://%s", bucket)
	line("restic --cacert ca.pem -r s3:%s/%s/backup init", endpoint, bucket)
	line("\n# rclone:")
	line("rclone config create cloudless s3 provider=Other endpoint=%s region=%s access_key_id=%s secret_access_key=%s", endpoint, made.GetRegion(), id, made.GetSecret())
	line("rclone --ca-cert ca.pem ls cloudless:%s", bucket)
	return e.Printf("%s", lines.String())
}

// may says what a key is for, such as "operator on photos, videos".
func may(key *v1.AccessKey) string {
	return key.GetSpec().GetRole() + " on " + cmp.Or(strings.Join(key.GetSpec().GetBuckets(), ", "), "all buckets")
}

// end is when a key ends; empty if it stays.
func end(key *v1.AccessKey, now time.Time) string {
	switch at := key.GetSpec().GetExpireTime(); {
	case at == nil:
		return ""
	case !now.Before(at.AsTime()):
		return "ended " + minute(at)
	default:
		return minute(at)
	}
}

func minute(at *timestamppb.Timestamp) string { return at.AsTime().Format("2006-01-02 15:04 UTC") }

// KeyHeadings are the columns of lists of access keys beside name and age, and KeyRow is one line of them.
var KeyHeadings = []string{"ROLE", "BUCKETS", "AUTHOR", "LAST USED", "UNTIL", "PURPOSE"}

// KeyRow describes an access key in a list.
func KeyRow(o client.Object) []string {
	key := o.(*v1.AccessKey)
	used := "never"
	if at := key.GetStatus().GetLastUsed(); at != nil {
		used = command.Age(at, time.Now()) + " ago"
	}
	return []string{
		key.GetSpec().GetRole(), cmp.Or(strings.Join(key.GetSpec().GetBuckets(), ","), "all"), author(key.GetStatus().GetAuthor()), used,
		end(key, time.Now()), key.GetSpec().GetPurpose(),
	}
}

// author is the end of a SPIFFE id: user/ann.
func author(id string) string {
	_, path, found := strings.Cut(strings.TrimPrefix(id, "spiffe://"), "/")
	if !found {
		return id
	}
	return path
}

func listKeys(e *command.Env) *cobra.Command {
	var everywhere bool
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List access keys, and when they were last used",
		Example: "  cloudless bucket key ls\n  cloudless bucket key ls -A -o json",
		Args:    command.ExactArgs(),
		RunE: e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			namespace := cmp.Or(e.Namespace, spec.DefaultNamespace)
			if everywhere {
				namespace = ""
			}
			all, err := client.AllPages(func(page *v1.Page) ([]*v1.AccessKey, string, error) {
				answer, err := service(cl).ListAccessKeys(ctx, &v1.ListAccessKeysRequest{Selection: &v1.Selection{Namespace: namespace}, Page: page})
				return answer.GetItems(), answer.GetNext(), err
			})
			if err != nil {
				return err
			}
			if !e.ForPeople() {
				return command.PrintList(e, all)
			}
			headings := append(append([]string{"KEY"}, KeyHeadings...), "AGE")
			if everywhere {
				headings = append([]string{"NAMESPACE"}, headings...)
			}
			t := terminal.NewTable(e.Stdout, headings...)
			for _, key := range all {
				m := key.GetMetadata()
				cells := append(append([]string{m.GetName()}, KeyRow(key)...), command.Age(m.GetCreateTime(), time.Now()))
				if everywhere {
					cells = append([]string{m.GetNamespace()}, cells...)
				}
				t.Row(cells...)
			}
			e.NoteEmpty(len(all), "access keys", everywhere)
			return t.Flush()
		}),
	}
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "list the keys of all namespaces")
	return cmd
}

func removeKeys(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "rm KEY...", Aliases: []string{"remove", "delete"}, Short: "Remove access keys: clients cannot use them any more",
		Example: "  cloudless bucket key rm clk2v5q6wd7txm4gb3ya",
		Args:    command.AtLeastOne("KEY"),
		RunE: e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			return e.ForEach(args, func(name string) error {
				removed, err := service(cl).DeleteAccessKey(ctx, &v1.DeleteAccessKeyRequest{Namespace: e.Namespace, Name: name})
				if err != nil {
					return err
				}
				return e.PrintRemoved("access key", name, removed, len(args) > 1)
			})
		}),
	}
}
