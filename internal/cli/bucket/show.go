package bucket

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// Headings are the columns of lists of buckets beside name and age, and Row is one line of them.
var Headings = []string{"OBJECTS", "USED", "QUOTA", "COPIES", "VERSIONING", "PROBLEM"}

// Row describes a bucket in a list.
func Row(o client.Object) []string {
	b := o.(*v1.Bucket)
	s, st := b.GetSpec(), b.GetStatus()
	objects, used := strconv.FormatInt(st.GetObjects(), 10), spec.HumanBytes(st.GetBytes())
	if !counted(st) {
		objects, used = "?", "?"
	}
	return []string{objects, used, cmp.Or(s.GetQuota(), unlimited), strconv.Itoa(int(st.GetCopies())), s.GetVersioning(), problem(st)}
}

// counted reports whether it is known what a bucket holds.
func counted(st *v1.BucketStatus) bool {
	return st.GetProblem() == "" || st.GetObjects()+st.GetVersions()+st.GetUploads()+st.GetBytes() > 0 || st.GetPhase() == spec.BucketDeleting
}

func problem(st *v1.BucketStatus) string {
	if st.GetPhase() == spec.BucketDeleting {
		return cmp.Or(st.GetProblem(), "is being deleted")
	}
	return st.GetProblem()
}

// Get is the command cloudless bucket get.
func Get(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show one bucket: its settings, and what it holds",
		Example: "  cloudless bucket get photos\n  cloudless bucket get photos -o json",
		Args:    command.ExactArgs("NAME"),
		RunE: e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			b, err := service(cl).GetBucket(ctx, &v1.GetBucketRequest{Namespace: e.Namespace, Name: args[0]})
			if err != nil {
				return err
			}
			if !e.ForPeople() {
				return e.PrintObject(b)
			}
			return show(e, b)
		}),
	}
}

func show(e *command.Env, b *v1.Bucket) error {
	s, st := b.GetSpec(), b.GetStatus()
	f := terminal.NewFacts(e.Stdout)
	f.Add("Name", b.GetMetadata().GetName())
	f.Add("Namespace", b.GetMetadata().GetNamespace())
	f.Add("Labels", terminal.Pairs(b.GetMetadata().GetLabels()))
	f.Add("Phase", st.GetPhase())
	f.Add("Problem", st.GetProblem())
	if counted(st) {
		f.Add("Objects", strconv.FormatInt(st.GetObjects(), 10))
		if st.GetVersions() > st.GetObjects() {
			f.Add("Versions", strconv.FormatInt(st.GetVersions(), 10))
		}
		if st.GetUploads() > 0 {
			f.Add("Unfinished", spec.Count(int(st.GetUploads()), "upload"))
		}
		f.Add("Used", spec.HumanBytes(st.GetBytes()))
	}
	f.Add("Quota", cmp.Or(s.GetQuota(), unlimited))
	wanted := "of each object"
	if s.GetReplicas() == 0 {
		wanted += ", up to 3"
	} else if st.GetCopies() < s.GetReplicas() {
		wanted += ", and " + strconv.Itoa(int(s.GetReplicas())) + " when there are so many nodes"
	}
	f.Add("Copies", strconv.Itoa(int(st.GetCopies()))+" "+wanted)
	f.Add("Versioning", cmp.Or(s.GetVersioning(), "off"))
	f.Add("Encryption", encryption(s))
	var rules []string
	for _, r := range s.GetExpiry() {
		rules = append(rules, strings.TrimSpace("after "+r.GetAfter()+" "+prefixed(r.GetPrefix())))
	}
	f.Add("Expiry", strings.Join(rules, ", "))
	f.Add("Upload TTL", s.GetUploadTtl())
	f.Add("Age", command.Age(b.GetMetadata().GetCreateTime(), time.Now()))
	return f.Flush()
}

// encryption is what happens to objects that are put now.
func encryption(s *v1.BucketSpec) string {
	if s.GetEncrypted() {
		return "on"
	}
	return "off"
}

func prefixed(prefix string) string {
	if prefix == "" {
		return ""
	}
	return "for keys with " + prefix
}

// Remove is the command cloudless bucket rm.
func Remove(e *command.Env) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "rm NAME...", Aliases: []string{"remove", "delete"}, Short: "Remove buckets",
		Long: "Rm deletes empty buckets, and with --force also buckets with everything that is in them. That may take a while. If it is\n" +
			"interrupted, the same command goes on. Access keys that are only for a deleted bucket are deleted with it.",
		Example: "  cloudless bucket rm photos\n  cloudless bucket rm photos --force",
		Args:    command.AtLeastOne("NAME"),
		RunE: e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			return e.ForEach(args, func(name string) error {
				removed, err := service(cl).DeleteBucket(ctx, &v1.DeleteBucketRequest{Namespace: e.Namespace, Name: name, Force: force})
				if err != nil {
					return err
				}
				return e.PrintRemoved("bucket", name, removed, len(args) > 1)
			})
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "delete all objects in it first, old versions too")
	return cmd
}
