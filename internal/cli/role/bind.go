package role

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
)

// subjects are the flags that say who gets or loses a role.
type subjects struct {
	users, groups, tokens []string
	name                  string
}

func (s *subjects) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&s.users, "user", nil, "`name` of a user, as the OpenID provider gives it; may be repeated")
	flags.StringArrayVar(&s.groups, "group", nil, "`name` of a group, as the OpenID provider gives it; may be repeated")
	flags.StringArrayVar(&s.tokens, "token", nil, "`name` of an API token; may be repeated")
	flags.StringVar(&s.name, "name", "", "`name` of the binding (default: that of the role, and of the namespace)")
}

func (s *subjects) empty() bool { return len(s.users)+len(s.groups)+len(s.tokens) == 0 }

// bindingName is the name of the binding that bind makes and unbind finds.
func (s *subjects) bindingName(role, namespace string) string {
	if namespace == "" {
		return cmp.Or(s.name, role)
	}
	return cmp.Or(s.name, role+"-"+namespace)
}

// Bind is the command cloudless role bind.
func Bind(e *command.Env) *cobra.Command {
	var s subjects
	cmd := &cobra.Command{
		Use:   "bind ROLE --user NAME|--group NAME|--token NAME",
		Short: "Give a role to users, groups and tokens",
		Long: "Bind gives a role to users and groups of the OpenID provider and to tokens: in one namespace with -n, or else in all\n" +
			"of them. It makes a binding, or adds to the one of the same name. You cannot give away more than you have.",
		Example: "  cloudless role bind operator --group devs -n shop\n  cloudless role bind viewer --user alice@example.org\n  cloudless role bind deployer --token ci -n shop",
		Args:    command.ExactArgs("ROLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if s.empty() {
				return command.Usagef(cmd, "nobody is named: say who gets the role, with --user, --group or --token")
			}
			namespace := given(e, cmd)
			return e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				name := s.bindingName(args[0], namespace)
				b, err := find(ctx, cl, name)
				if err != nil {
					return err
				}
				if b == nil {
					b = &v1.RoleBinding{Metadata: &v1.Metadata{Name: name}, Spec: &v1.RoleBindingSpec{Role: args[0], Namespace: namespace}}
				}
				if b.GetSpec().GetRole() != args[0] || b.GetSpec().GetNamespace() != namespace {
					return fmt.Errorf("binding %s is of role %s%s already; choose another name with --name", name, b.GetSpec().GetRole(), where(b.GetSpec().GetNamespace()))
				}
				b.Spec.Users, b.Spec.Groups, b.Spec.Tokens = with(b.Spec.Users, s.users), with(b.Spec.Groups, s.groups), with(b.Spec.Tokens, s.tokens)
				answer, err := cl.Roles().ApplyRoleBinding(ctx, &v1.ApplyRoleBindingRequest{RoleBinding: b})
				if err != nil {
					return err
				}
				return printBinding(e, answer.GetRoleBinding(), answer.GetResult())
			})(cmd, args)
		},
	}
	s.register(cmd)
	return cmd
}

// Unbind is the command cloudless role unbind.
func Unbind(e *command.Env) *cobra.Command {
	var s subjects
	cmd := &cobra.Command{
		Use:     "unbind ROLE --user NAME|--group NAME|--token NAME",
		Short:   "Take a role from users, groups and tokens",
		Long:    "Unbind takes a role from the users, groups and tokens that bind has given it to, in the same namespace. Open streams\nthat need the role end at once.",
		Example: "  cloudless role unbind operator --group devs -n shop\n  cloudless role unbind viewer --user alice@example.org",
		Args:    command.ExactArgs("ROLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if s.empty() {
				return command.Usagef(cmd, "nobody is named: say who loses the role, with --user, --group or --token; or remove the whole binding with: cloudless rolebinding rm NAME")
			}
			namespace := given(e, cmd)
			return e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				name := s.bindingName(args[0], namespace)
				b, err := find(ctx, cl, name)
				if err != nil {
					return err
				}
				if b == nil {
					return fmt.Errorf("there is no binding %s; see: cloudless rolebinding ls", name)
				}
				for _, part := range []struct {
					noun        string
					have, taken []string
				}{{"user", b.Spec.Users, s.users}, {"group", b.Spec.Groups, s.groups}, {"token", b.Spec.Tokens, s.tokens}} {
					for _, one := range part.taken {
						if !slices.Contains(part.have, one) {
							return fmt.Errorf("binding %s does not give its role to %s %s; see: cloudless rolebinding get %s", name, part.noun, one, name)
						}
					}
				}
				b.Spec.Users, b.Spec.Groups, b.Spec.Tokens = without(b.Spec.Users, s.users), without(b.Spec.Groups, s.groups), without(b.Spec.Tokens, s.tokens)
				if len(b.Spec.Users)+len(b.Spec.Groups)+len(b.Spec.Tokens) == 0 {
					gone, err := cl.Roles().DeleteRoleBinding(ctx, &v1.DeleteRoleBindingRequest{Name: name, Version: b.GetMetadata().GetVersion()})
					if err != nil {
						return err
					}
					return e.PrintRemoved("rolebinding", name, gone, false)
				}
				answer, err := cl.Roles().ApplyRoleBinding(ctx, &v1.ApplyRoleBindingRequest{RoleBinding: b})
				if err != nil {
					return err
				}
				return printBinding(e, answer.GetRoleBinding(), answer.GetResult())
			})(cmd, args)
		},
	}
	s.register(cmd)
	return cmd
}

// given is the namespace of the flag -n; empty without it, which stands for all namespaces.
func given(e *command.Env, cmd *cobra.Command) string {
	if !cmd.Flags().Changed("namespace") {
		return ""
	}
	return e.Namespace
}

// find returns a binding, nil if there is none.
func find(ctx context.Context, cl *client.Client, name string) (*v1.RoleBinding, error) {
	b, err := cl.Roles().GetRoleBinding(ctx, &v1.GetRoleBindingRequest{Name: name})
	if status.Code(err) == codes.NotFound {
		return nil, nil
	}
	return b, err
}

func printBinding(e *command.Env, b *v1.RoleBinding, result string) error {
	if !e.ForPeople() {
		return e.PrintObject(b)
	}
	return e.Printf("rolebinding %s %s: role %s%s for %s\n", b.GetMetadata().GetName(), result, b.GetSpec().GetRole(), where(b.GetSpec().GetNamespace()), Subjects(b))
}

func where(namespace string) string {
	if namespace == "" {
		return " in all namespaces"
	}
	return " in namespace " + namespace
}

// Subjects lists who a binding is about, such as "group devs, token ci".
func Subjects(b *v1.RoleBinding) string {
	var all []string
	for _, part := range []struct {
		noun  string
		names []string
	}{{"user ", b.GetSpec().GetUsers()}, {"group ", b.GetSpec().GetGroups()}, {"token ", b.GetSpec().GetTokens()}} {
		for _, name := range part.names {
			all = append(all, part.noun+name)
		}
	}
	return strings.Join(all, ", ")
}

// Rules is what a role grants in one line, such as "get, logs on workload; get on event".
func Rules(r *v1.Role) string {
	var all []string
	for _, rule := range r.GetSpec().GetRules() {
		all = append(all, strings.Join(rule.GetVerbs(), ", ")+" on "+strings.Join(rule.GetKinds(), ", "))
	}
	return strings.Join(all, "; ")
}

func with(have, more []string) []string {
	for _, one := range more {
		if !slices.Contains(have, one) {
			have = append(have, one)
		}
	}
	return have
}

func without(have, less []string) []string {
	return slices.DeleteFunc(have, func(one string) bool { return slices.Contains(less, one) })
}
