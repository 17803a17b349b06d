package route

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/bcrypt"
	"golang.org/x/term"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

// maxPassword is how much of a password bcrypt uses, in bytes.
const maxPassword = 72

// hash asks for the password of each user and puts its hash into the route. The password itself never leaves this machine.
func (f *flags) hash(e *command.Env, cmd *cobra.Command, r *v1.Route) error {
	users := r.GetSpec().GetHttp().GetUsers()
	if len(users) == 0 {
		if f.passwords {
			return command.Usagef(cmd, "--password-stdin is for the passwords of users: name them with --user")
		}
		return nil
	}
	next, err := f.passwordSource(e, cmd, len(users))
	if err != nil {
		return err
	}
	for _, u := range users {
		password, err := next(u.GetName())
		if err != nil {
			return fmt.Errorf("read the password of %s: %w", u.GetName(), err)
		}
		switch {
		case password == "":
			return fmt.Errorf("the password of %s is empty: type it, or give it with --password-stdin", u.GetName())
		case len(password) > maxPassword:
			return fmt.Errorf("the password of %s has more than %d bytes: choose a shorter one", u.GetName(), maxPassword)
		}
		hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.DefaultCost)
		if err != nil {
			return fmt.Errorf("hash the password of %s: %w", u.GetName(), err)
		}
		u.PasswordHash = string(hash)
	}
	return nil
}

// passwordSource returns what reads the next password: a line of standard input, or what is typed.
func (f *flags) passwordSource(e *command.Env, cmd *cobra.Command, users int) (next func(user string) (string, error), err error) {
	if !f.passwords {
		keyboard, ok := e.Stdin.(*os.File)
		if !ok || !terminal.IsTerminal(e.Stdin) {
			return nil, command.Usagef(cmd, "there is no terminal to ask for the password on: give it with --password-stdin")
		}
		return func(user string) (string, error) {
			fmt.Fprintf(e.Stderr, "Password of %s: ", user)
			data, err := term.ReadPassword(int(keyboard.Fd()))
			fmt.Fprintln(e.Stderr)
			return string(data), err
		}, nil
	}
	data, err := io.ReadAll(io.LimitReader(e.Stdin, int64(users)*1024))
	if err != nil {
		return nil, fmt.Errorf("read the passwords: %w", err)
	}
	lines := strings.Split(strings.TrimRight(string(data), "\r\n"), "\n")
	return func(string) (string, error) {
		if len(lines) == 0 {
			return "", errors.New("standard input has no line for it: give one line for each user, in the order of --user")
		}
		line := strings.TrimRight(lines[0], "\r")
		lines = lines[1:]
		return line, nil
	}, nil
}
