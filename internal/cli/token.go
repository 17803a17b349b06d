package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/role"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

func (c *cli) tokenCommand() *cobra.Command {
	return c.nounCommand("token", "Create and revoke tokens for joining machines and for API calls",
		"  cloudless token create --role node\n  cloudless token ls\n  cloudless token rm ci",
		c.tokenCreateCommand(), c.tokenListCommand(), c.tokenRemoveCommand())
}

func (c *cli) roleCommand() *cobra.Command {
	apply := c.applyCommand()
	apply.Short = "Create or update the roles and bindings in a file"
	apply.Long = "Apply creates or updates the roles and bindings in a file, such as those that role get -o yaml prints. A role grants verbs\n" +
		"on kinds. Like cloudless apply, it makes a plan and carries out exactly that plan."
	apply.Example = "  cloudless role apply -f role.yaml\n  cloudless role get viewer -o yaml"
	cmd := c.nounCommand("role", "Show and define roles, and give them to users, groups and tokens",
		"  cloudless role ls\n  cloudless role apply -f role.yaml\n  cloudless role bind operator --group devs -n shop\n  cloudless role rm deployer",
		role.Bind(c.Env), role.Unbind(c.Env), apply)
	cmd.Long = "The roles viewer, operator and admin always exist. Roles of your own grant less, or something else: verbs such as get and\n" +
		"update on kinds such as workload. A binding gives a role to users, groups and tokens, in one namespace or in all."
	return cmd
}

func (c *cli) roleBindingCommand() *cobra.Command {
	return c.nounCommand("rolebinding", "Show who has which role",
		"  cloudless rolebinding ls\n  cloudless rolebinding get operator-shop\n  cloudless rolebinding rm operator-shop")
}

func (c *cli) tokenCreateCommand() *cobra.Command {
	var request cloudlessv1.CreateTokenRequest
	cmd := &cobra.Command{
		Use:   "create --role node|server|ROLE",
		Short: "Create a token; its secret is shown only once",
		Long: "Create creates a token and prints its secret, which is not stored and never shown again. A token with role node\n" +
			"or server lets machines join; the other roles let programs call the API. With -n, the role counts in that namespace\n" +
			"only. A token that lets a machine join can fix its name, labels and zone: the machine cannot choose others. The\n" +
			"bearer of a renewable token may renew it again and again, each time for --ttl; the context that logs in with it does\n" +
			"so by itself.",
		Example: "  cloudless token create --role node > join-token\n" +
			"  cloudless token create --role node --ttl 1h --uses 3\n" +
			"  cloudless token create --role node --node-name box-7 --zone berlin --node-label rack=b2\n" +
			"  cloudless token create --role viewer --name ci --ttl 720h\n" +
			"  cloudless token create --role deployer -n shop --ttl 8h --purpose \"releases of the shop\"",
		Args: command.ExactArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if request.Role == "" {
				return command.Usagef(cmd, "--role is missing: node or server lets a machine join; admin, operator or viewer let a program call")
			}
			if cmd.Flags().Changed("uses") && request.Uses < 1 {
				return command.Usagef(cmd, "--uses %d is of no use: say how many machines may join with the token, 1 or more", request.Uses)
			}
			if cmd.Flags().Changed("namespace") {
				request.Namespace = c.Namespace
			}
			return c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				answer, err := cl.Tokens().CreateToken(ctx, &request)
				if err != nil {
					return err
				}
				if !c.ForPeople() {
					return c.PrintObject(answer)
				}
				return c.printToken(answer, cl.Addresses()[0])
			})(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&request.Role, "role", "", "`role` of the token: node, server, admin, operator, viewer or one of your own")
	flags.StringVar(&request.Ttl, "ttl", "", "`time` after which the token expires (default 24h)")
	flags.Int32Var(&request.Uses, "uses", 0, "how many machines may join with the token (default 1)")
	flags.StringVar(&request.Name, "name", "", "`name` of the token (default: chosen by the cluster)")
	flags.StringVar(&request.Purpose, "purpose", "", "what the token is for, in a `sentence`")
	flags.StringToStringVar(&request.Labels, "label", nil, "`labels` of the token, such as team=web")
	flags.BoolVar(&request.Renewable, "renewable", false, "let the bearer renew the token, each time for --ttl")
	flags.StringVar(&request.NodeName, "node-name", "", "`name` of the machine that joins with the token")
	flags.StringToStringVar(&request.NodeLabels, "node-label", nil, "`labels` of the machine that joins, such as rack=b2")
	flags.StringVar(&request.Zone, "zone", "", "`zone` of the machine that joins")
	return cmd
}

// printToken prints the secret alone on standard output, so that it can be piped into a file.
func (c *cli) printToken(answer *cloudlessv1.CreateTokenResponse, server string) error {
	token := answer.GetToken()
	role := token.GetSpec().GetRole()
	if namespace := token.GetSpec().GetNamespace(); namespace != "" {
		role += " in namespace " + namespace
	}
	c.Note("Token %s, role %s, ends %s. Its secret is shown only this once:",
		token.GetMetadata().GetName(), role, token.GetSpec().GetExpireTime().AsTime().Local().Format(time.DateTime))
	if err := c.Printf("%s\n", answer.GetSecret()); err != nil {
		return err
	}
	if role != "node" && role != "server" {
		c.Note("Where it should be used: cloudless login %s --token-file FILE", server)
		return nil
	}
	c.Note("On the machine that should join: cloudless join %s --token-file FILE%s", server, roleFlag(role))
	c.Note("On the same network, --discover finds a server in place of the address.")
	return nil
}

func (c *cli) tokenListCommand() *cobra.Command {
	var labels string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List tokens, without their secrets",
		Example: "  cloudless token ls\n  cloudless token ls -l team=web",
		Args:    command.ExactArgs(),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			tokens, err := client.AllPages(func(page *cloudlessv1.Page) ([]*cloudlessv1.Token, string, error) {
				answer, err := cl.Tokens().ListTokens(ctx, &cloudlessv1.ListTokensRequest{Page: page, Labels: labels})
				return answer.GetItems(), answer.GetNext(), err
			})
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return command.PrintList(c.Env, tokens)
			}
			t := terminal.NewTable(c.Stdout, "NAME", "ROLE", "NAMESPACE", "USED", "LAST USED", "EXPIRES", "AGE", "PURPOSE")
			for _, token := range tokens {
				t.Row(token.GetMetadata().GetName(), cmp.Or(token.GetSpec().GetRole(), "user "+token.GetSpec().GetUser()), token.GetSpec().GetNamespace(), tokenUses(token), lastUse(token, time.Now()),
					tokenEnd(token, time.Now()), command.Age(token.GetMetadata().GetCreateTime(), time.Now()), token.GetSpec().GetPurpose())
			}
			return t.Flush()
		}),
	}
	selectorFlag(cmd, &labels, "team=web")
	return cmd
}

func tokenUses(token *cloudlessv1.Token) string {
	if token.GetSpec().GetUses() == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d", token.GetStatus().GetUsed(), token.GetSpec().GetUses())
}

// lastUse is when an API token was last used, and where from. Join tokens are counted.
func lastUse(token *cloudlessv1.Token, now time.Time) string {
	st := token.GetStatus()
	switch {
	case token.GetSpec().GetUses() > 0:
		return ""
	case st.GetLastUseTime() == nil:
		return "never"
	case st.GetLastUseAddress() == "":
		return command.Age(st.GetLastUseTime(), now) + " ago"
	}
	return command.Age(st.GetLastUseTime(), now) + " ago from " + st.GetLastUseAddress()
}

func tokenEnd(token *cloudlessv1.Token, now time.Time) string {
	at := token.GetSpec().GetExpireTime()
	switch {
	case at == nil:
		return "never"
	case !at.AsTime().After(now):
		return "has ended"
	}
	return "in " + command.ShortDuration(at.AsTime().Sub(now))
}

func (c *cli) tokenRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "rm NAME...",
		Aliases: []string{"remove", "delete", "revoke"},
		Short:   "Revoke tokens; their users lose access at once",
		Example: "  cloudless token rm ci\n  cloudless token rm ci reader",
		Args:    command.AtLeastOne("NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			return c.ForEach(args, func(name string) error {
				if _, err := cl.Tokens().DeleteToken(ctx, &cloudlessv1.DeleteTokenRequest{Name: name}); err != nil || !c.ForPeople() {
					return err
				}
				return c.Printf("token %s revoked\n", name)
			})
		}),
	}
}

// roleFlag is the flag that join needs besides the token.
func roleFlag(role string) string {
	if role == "server" {
		return " --role server"
	}
	return ""
}
