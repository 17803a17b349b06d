package secret

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

// Headings are the columns of lists of secrets beside name and age, and Row is one line of them.
var Headings = []string{"VERSION", "EXPIRES", "FOR", "USED BY", "DELIVERED"}

// Row describes a secret in a list.
func Row(o client.Object) []string {
	s := o.(*v1.Secret)
	st := s.GetStatus()
	return []string{
		strconv.FormatUint(st.GetVersion(), 10), expiry(current(s), time.Now()), strings.TrimPrefix(audience(s), "for "),
		strings.Join(st.GetUsedBy(), ", "), delivered(st),
	}
}

func current(s *v1.Secret) *v1.SecretVersion {
	for _, v := range s.GetStatus().GetVersions() {
		if v.GetNumber() == s.GetStatus().GetVersion() {
			return v
		}
	}
	return nil
}

func expiry(v *v1.SecretVersion, now time.Time) string {
	switch at := v.GetExpireTime(); {
	case at == nil:
		return ""
	case !now.Before(at.AsTime()):
		return "expired " + minute(at)
	default:
		return minute(at)
	}
}

func minute(at *timestamppb.Timestamp) string { return at.AsTime().Format("2006-01-02 15:04 UTC") }

// audience says who may use a secret.
func audience(s *v1.Secret) string {
	if len(s.GetSpec().GetAudience()) == 0 {
		return "for all workloads of the namespace"
	}
	return "for " + strings.Join(s.GetSpec().GetAudience(), ", ")
}

// until continues a sentence with the expiry of the current version.
func until(s *v1.Secret) string {
	if at := current(s).GetExpireTime(); at != nil {
		return ", until " + minute(at)
	}
	return ""
}

func delivered(st *v1.SecretStatus) string {
	if st.GetWanted() == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", st.GetDelivered(), st.GetWanted())
}

// Get is the command cloudless secret get.
func Get(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show one secret: its versions, and who may use it, but not its value",
		Example: "  cloudless secret get db-password\n  cloudless secret get db-password -o json",
		Args:    command.ExactArgs("NAME"),
		RunE: e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			s, err := client.Service(cl, v1.NewSecretServiceClient).GetSecret(ctx, &v1.GetSecretRequest{Namespace: e.Namespace, Name: args[0]})
			if err != nil {
				return err
			}
			if !e.ForPeople() {
				return e.PrintObject(s)
			}
			return show(e, s)
		}),
	}
}

func show(e *command.Env, s *v1.Secret) error {
	st := s.GetStatus()
	f := terminal.NewFacts(e.Stdout)
	f.Add("Name", s.GetMetadata().GetName())
	f.Add("Namespace", s.GetMetadata().GetNamespace())
	f.Add("Labels", terminal.Pairs(s.GetMetadata().GetLabels()))
	f.Add("Version", strconv.FormatUint(st.GetVersion(), 10))
	f.Add("Expires", expiry(current(s), time.Now()))
	f.Add("For", strings.TrimPrefix(audience(s), "for "))
	f.Add("TTL", s.GetSpec().GetTtl())
	f.Add("Used by", strings.Join(st.GetUsedBy(), ", "))
	if st.GetWanted() > 0 {
		f.Add("Delivered", fmt.Sprintf("to %d of %d replicas", st.GetDelivered(), st.GetWanted()))
	}
	f.Add("Age", command.Age(s.GetMetadata().GetCreateTime(), time.Now()))
	if err := f.Flush(); err != nil {
		return err
	}
	t := terminal.NewTable(e.Stdout, "VERSION", "SIZE", "AUTHOR", "EXPIRES", "AGE")
	for _, v := range st.GetVersions() {
		t.Row(strconv.FormatUint(v.GetNumber(), 10), terminal.Size(v.GetSize()), author(v.GetAuthor()), expiry(v, time.Now()), command.Age(v.GetCreateTime(), time.Now()))
	}
	return e.Section("Versions:", t)
}

// author is the end of a SPIFFE id: user/ann.
func author(id string) string {
	_, path, found := strings.Cut(strings.TrimPrefix(id, "spiffe://"), "/")
	if !found {
		return id
	}
	return path
}

// Deliveries is the command cloudless secret deliveries.
func Deliveries(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "deliveries NAME", Short: "Show which replicas got which version of a secret, newest first",
		Example: "  cloudless secret deliveries db-password\n  cloudless secret deliveries db-password -o json",
		Args:    command.ExactArgs("NAME"),
		RunE: e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			calls := client.Service(cl, v1.NewSecretServiceClient)
			all, err := client.AllPages(func(page *v1.Page) ([]*v1.SecretDelivery, string, error) {
				answer, err := calls.ListSecretDeliveries(ctx, &v1.ListSecretDeliveriesRequest{Namespace: e.Namespace, Name: args[0], Page: page})
				return answer.GetItems(), answer.GetNext(), err
			})
			if err != nil {
				return err
			}
			if !e.ForPeople() {
				return command.PrintList(e, all)
			}
			t := terminal.NewTable(e.Stdout, "VERSION", "REPLICA", "NODE", "TIME", "AGE")
			for _, d := range all {
				t.Row(strconv.FormatUint(d.GetVersion(), 10), d.GetReplica(), d.GetNode(), d.GetTime().AsTime().Format(time.RFC3339), command.Age(d.GetTime(), time.Now()))
			}
			e.NoteEmpty(len(all), "deliveries", false)
			return t.Flush()
		}),
	}
}

// Rotate is the command cloudless secret rotate.
func Rotate(e *command.Env) *cobra.Command {
	var length int32
	cmd := &cobra.Command{
		Use: "rotate NAME", Short: "Give a secret a new random value",
		Long: "Rotate gives a secret a new version with random letters and digits, which nobody has to know. Give only those secrets\n" +
			"random values whose other side, such as a database, gets the new value from the same secret.",
		Example: "  cloudless secret rotate session-key\n  cloudless secret rotate session-key --length 64",
		Args:    command.ExactArgs("NAME"),
		RunE: e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			made, err := client.Service(cl, v1.NewSecretServiceClient).RotateSecret(ctx, &v1.RotateSecretRequest{Namespace: e.Namespace, Name: args[0], Length: length})
			if err != nil {
				return err
			}
			if !e.ForPeople() {
				return e.PrintObject(made)
			}
			return e.Printf("secret %s is at version %d%s\n", args[0], made.GetStatus().GetVersion(), until(made))
		}),
	}
	cmd.Flags().Int32Var(&length, "length", 0, "how many characters the value has (default 32)")
	return cmd
}

// Remove is the command cloudless secret rm.
func Remove(e *command.Env) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "rm NAME...", Aliases: []string{"remove", "delete"}, Short: "Remove secrets",
		Long:    "Rm deletes secrets with all their values. A secret that workloads use is deleted only with --force.",
		Example: "  cloudless secret rm db-password\n  cloudless secret rm db-password --force",
		Args:    command.AtLeastOne("NAME"),
		RunE: e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			calls := client.Service(cl, v1.NewSecretServiceClient)
			return e.ForEach(args, func(name string) error {
				removed, err := calls.DeleteSecret(ctx, &v1.DeleteSecretRequest{Namespace: e.Namespace, Name: name, Force: force})
				if err != nil {
					return err
				}
				return e.PrintRemoved("secret", name, removed, len(args) > 1)
			})
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "even if workloads use them: running replicas lose them, and new ones wait")
	return cmd
}

// InWords lists how a workload gets its secrets: "db-password as DB_PASSWORD, tls at /run/secrets/tls".
func InWords(refs []*v1.SecretRef) string {
	var all []string
	for _, r := range refs {
		if r.GetEnv() != "" {
			all = append(all, r.GetName()+" as "+r.GetEnv())
		}
		if r.GetPath() != "" {
			all = append(all, r.GetName()+" at "+r.GetPath())
		}
	}
	return strings.Join(all, ", ")
}

// Refs reads the flags --secret of run: NAME=VARIABLE or NAME:/path.
func Refs(flags []string) (refs []*v1.SecretRef, err error) {
	for _, text := range flags {
		name, rest, found := "", "", false
		ref := &v1.SecretRef{}
		switch at := strings.IndexAny(text, "=:"); {
		case at < 0:
		case text[at] == '=':
			name, rest, found = strings.Cut(text, "=")
			if strings.HasPrefix(rest, "/") {
				ref.Path = rest
			} else {
				ref.Env = rest
			}
		default:
			name, rest, found = strings.Cut(text, ":")
			ref.Path = rest
		}
		if !found || name == "" || rest == "" {
			return nil, fmt.Errorf("--secret %.128q is not NAME=VARIABLE or NAME:/path, such as db-password=DB_PASSWORD or tls:/run/secrets/tls", text)
		}
		ref.Name = name
		refs = append(refs, ref)
	}
	return refs, nil
}
