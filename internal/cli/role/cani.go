package role

import (
	"cmp"
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

// CanI is the command cloudless can-i.
func CanI(e *command.Env) *cobra.Command {
	var as string
	var groups []string
	var everywhere bool
	cmd := &cobra.Command{
		Use:   "can-i VERB KIND",
		Short: "Ask whether you may do something, and which role would do",
		Long: "Can-i says whether your roles permit a verb on a kind, in the namespace of -n, or in all of them with -A. The verbs are\n" +
			strings.Join(api.Verbs(), ", ") + ".\nIf not, it names the roles that would be sufficient, the smallest first. The exit code is 0 for yes and 1 for no.",
		Example: "  cloudless can-i delete workload -n shop\n  cloudless can-i get node\n  cloudless can-i exec workload -n shop --as alice@example.org --group devs",
		Args:    command.ExactArgs("VERB", "KIND"),
		RunE: e.WithClient(func(ctx context.Context, cl *client.Client, cmd *cobra.Command, args []string) error {
			request := &v1.CanIRequest{Verb: args[0], Kind: args[1], User: as, Groups: groups}
			kind, known := api.KindOf(args[1])
			if known {
				request.Kind = kind.Noun()
			}
			if !everywhere && (known && kind.Namespaced || cmd.Flags().Changed("namespace")) {
				request.Namespace = e.Namespace
			}
			answer, err := cl.Roles().CanI(ctx, request)
			if err != nil {
				return err
			}
			if !e.ForPeople() {
				err = e.PrintObject(answer)
			} else if answer.GetAllowed() {
				err = e.Printf("yes: %s\n", answer.GetReason())
			} else {
				err = e.Printf("no: %s\n", answer.GetReason())
			}
			if err == nil && !answer.GetAllowed() {
				return command.Exit(1, nil)
			}
			return err
		}),
	}
	cmd.Flags().StringVar(&as, "as", "", "ask for another `user`; needs get on rolebinding")
	cmd.Flags().StringArrayVar(&groups, "group", nil, "`group` of that user; may be repeated")
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "ask about all namespaces")
	return cmd
}

// WhoAmI is the command cloudless whoami.
func WhoAmI(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "whoami", Short: "Show who you are to the cluster, and your roles",
		Example: "  cloudless whoami\n  cloudless whoami -o json",
		Args:    command.ExactArgs(),
		RunE: e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			me, err := cl.Cluster().WhoAmI(ctx, &v1.WhoAmIRequest{})
			if err != nil {
				return err
			}
			if !e.ForPeople() {
				return e.PrintObject(me)
			}
			f := terminal.NewFacts(e.Stdout)
			f.Add("Id", me.GetId())
			f.Add("Roles", cmp.Or(strings.Join(me.GetRoles(), ", "), me.GetRole(), "none"))
			f.Add("Namespace", me.GetNamespace())
			f.Add("Groups", strings.Join(me.GetGroups(), ", "))
			return f.Flush()
		}),
	}
}
