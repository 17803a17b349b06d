package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

func (c *cli) imageLoginCommand() *cobra.Command {
	var user string
	var fromStdin bool
	cmd := &cobra.Command{
		Use:   "login HOST --username USER [--password-stdin]",
		Short: "Let the cluster pull from a registry that requires a login",
		Long: "Login stores the password of an external registry, encrypted, so that nodes can pull from it. Login reads the\n" +
			"password from the terminal or, with --password-stdin, from standard input. No command ever shows it.",
		Example: "  cloudless image login ghcr.io --username ann\n  cloudless image login registry.example:5000 --username ci --password-stdin < password",
		Args:    command.ExactArgs("HOST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if user == "" {
				return command.Usagef(cmd, "--username is missing: %s", cmd.UseLine())
			}
			password, err := c.readPassword(cmd, fromStdin, user, args[0])
			if err != nil {
				return err
			}
			return c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				login, err := cl.Images().SetLogin(ctx, &cloudlessv1.SetLoginRequest{Host: args[0], Username: user, Password: password})
				if err != nil {
					return err
				}
				if !c.ForPeople() {
					return c.PrintObject(login)
				}
				return c.Printf("images of %s are pulled as %s\n", login.GetSpec().GetHost(), login.GetSpec().GetUsername())
			})(cmd, args)
		},
	}
	cmd.Flags().StringVarP(&user, "username", "u", "", "`name` of the user")
	cmd.Flags().BoolVar(&fromStdin, "password-stdin", false, "read the password from standard input")
	return cmd
}

// maxPassword is the longest password that the API accepts.
const maxPassword = 8192

func (c *cli) readPassword(cmd *cobra.Command, fromStdin bool, user, host string) (string, error) {
	var data []byte
	var err error
	keyboard, _ := c.Stdin.(*os.File)
	switch {
	case fromStdin:
		data, err = io.ReadAll(io.LimitReader(c.Stdin, maxPassword+3))
	case terminal.IsTerminal(c.Stdin):
		fmt.Fprintf(c.Stderr, "Password of %s at %s: ", user, host)
		data, err = term.ReadPassword(int(keyboard.Fd()))
		fmt.Fprintln(c.Stderr)
	default:
		return "", command.Usagef(cmd, "there is no terminal to ask for the password on: give it with --password-stdin")
	}
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	password := strings.TrimRight(string(data), "\r\n")
	switch {
	case password == "":
		return "", errors.New("the password is empty: give it with --password-stdin, or type it")
	case len(password) > maxPassword:
		return "", fmt.Errorf("the password has more than %d characters", maxPassword)
	}
	return password, nil
}

func (c *cli) imageLogoutCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "logout HOST",
		Short:   "Forget the login to a registry",
		Example: "  cloudless image logout ghcr.io",
		Args:    command.ExactArgs("HOST"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			if _, err := cl.Images().DeleteLogin(ctx, &cloudlessv1.DeleteLoginRequest{Name: args[0]}); err != nil {
				return err
			}
			if !c.ForPeople() {
				return nil
			}
			return c.Printf("the login to %s is forgotten\n", args[0])
		}),
	}
}

func (c *cli) imageLoginsCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "logins",
		Short:   "List the registries that the cluster logs in to",
		Example: "  cloudless image logins",
		Args:    command.ExactArgs(),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			logins, err := client.AllPages(func(page *cloudlessv1.Page) ([]*cloudlessv1.Login, string, error) {
				answer, err := cl.Images().ListLogins(ctx, &cloudlessv1.ListLoginsRequest{Page: page})
				return answer.GetItems(), answer.GetNext(), err
			})
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return command.PrintList(c.Env, logins)
			}
			t := terminal.NewTable(c.Stdout, "HOST", "USER", "AGE")
			for _, login := range logins {
				t.Row(login.GetSpec().GetHost(), login.GetSpec().GetUsername(), command.Age(login.GetMetadata().GetCreateTime(), time.Now()))
			}
			return t.Flush()
		}),
	}
}
