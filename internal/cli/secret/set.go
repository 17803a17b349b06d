package secret

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

// maxValue is the longest value that the API accepts.
const maxValue = 1 << 20

// setFlags are those of secret set.
type setFlags struct {
	file, ttl              string
	audience, also, labels []string
	everyone, keep         bool
}

// Set is the command cloudless secret set.
func Set(e *command.Env) *cobra.Command {
	var f setFlags
	cmd := &cobra.Command{
		Use:   "set NAME [FILE|-]",
		Short: "Give a secret a value, which is never shown again",
		Long: "Set creates a secret, or gives it a new version. It asks for the value without showing it, or reads a file or, with -,\n" +
			"standard input, exactly as they are. The value is encrypted in the cluster, and no command shows it. Running replicas\n" +
			"get a new version at once in their files; those that have it in their environment are replaced, like by a restart.",
		Example: "  cloudless secret set db-password\n" +
			"  cloudless secret set tls-key ./key.pem --for web --for api\n" +
			"  openssl rand -hex 32 | cloudless secret set session-key - --ttl 720h\n" +
			"  cloudless secret set db-password --keep --also-for report",
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return command.Usagef(cmd, "NAME is missing: %s", cmd.UseLine())
			case len(args) > 2:
				return command.Usagef(cmd, "%q is too much: %s", args[2], cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				if f.file != "" {
					return command.Usagef(cmd, "give the file once: as an argument or with --file")
				}
				f.file = args[1]
			}
			return f.set(e, cmd, args[0])
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.file, "file", "", "`file` with the value, or - for standard input")
	flags.StringSliceVar(&f.audience, "for", nil, "`workload` that may use it; may be repeated (default: all of the namespace)")
	flags.StringSliceVar(&f.also, "also-for", nil, "`workload` that may use it beside those that already may")
	flags.BoolVar(&f.everyone, "for-all", false, "let every workload of the namespace use it")
	flags.StringVar(&f.ttl, "ttl", "", "`time` after which each version expires, such as 720h; 0 for never")
	flags.StringArrayVarP(&f.labels, "label", "l", nil, "label `KEY=VALUE` of the secret; may be repeated")
	flags.BoolVar(&f.keep, "keep", false, "keep the value, and change only who may use it and for how long")
	return cmd
}

func (f *setFlags) set(e *command.Env, cmd *cobra.Command, name string) error {
	request := &v1.SetSecretRequest{Namespace: e.Namespace, Name: name}
	var err error
	if request.Labels, err = command.ParsePairs("label", f.labels, nil); err != nil {
		return command.Usagef(cmd, "%w", err)
	}
	changesSpec := len(f.audience)+len(f.also) > 0 || f.everyone || cmd.Flags().Changed("ttl")
	switch {
	case f.everyone && len(f.audience)+len(f.also) > 0:
		return command.Usagef(cmd, "--for-all is for every workload: leave out --for and --also-for")
	case f.keep && f.file != "":
		return command.Usagef(cmd, "--keep keeps the value: leave it out, or the file")
	case f.keep && !changesSpec && len(f.labels) == 0:
		return command.Usagef(cmd, "--keep changes nothing alone: give --for, --also-for, --for-all or --ttl too")
	case !f.keep:
		if request.Value, err = f.read(e, cmd, name); err != nil {
			return err
		}
		defer clear(request.Value)
	}
	return e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
		calls := client.Service(cl, v1.NewSecretServiceClient)
		if changesSpec {
			if request.Spec, err = f.spec(ctx, calls, e.Namespace, name, cmd.Flags().Changed("ttl")); err != nil {
				return err
			}
		}
		made, err := calls.SetSecret(ctx, request)
		if err != nil {
			return err
		}
		if !e.ForPeople() {
			return e.PrintObject(made)
		}
		if f.keep {
			return e.Printf("secret %s changed: %s\n", name, audience(made))
		}
		return e.Printf("secret %s is at version %d, %s%s\n", name, made.GetStatus().GetVersion(), audience(made), until(made))
	})(cmd, nil)
}

// spec is what the flags make of the present spec.
func (f *setFlags) spec(ctx context.Context, calls v1.SecretServiceClient, namespace, name string, ttl bool) (*v1.SecretSpec, error) {
	old, err := calls.GetSecret(ctx, &v1.GetSecretRequest{Namespace: namespace, Name: name})
	if err != nil && status.Code(err) != codes.NotFound {
		return nil, err
	}
	s := &v1.SecretSpec{Audience: old.GetSpec().GetAudience(), Ttl: old.GetSpec().GetTtl()}
	if len(f.audience) > 0 || f.everyone {
		s.Audience = f.audience
	}
	if len(f.also) > 0 && (len(s.Audience) > 0 || old == nil) { // otherwise every workload may use it already
		s.Audience = append(slices.Clone(s.Audience), f.also...)
	}
	slices.Sort(s.Audience)
	s.Audience = slices.Compact(s.Audience)
	if ttl {
		if s.Ttl = f.ttl; f.ttl == "0" || f.ttl == "0s" {
			s.Ttl = ""
		}
	}
	return s, nil
}

// read reads the value: from a file or standard input exactly as it is, or from the terminal, twice.
func (f *setFlags) read(e *command.Env, cmd *cobra.Command, name string) ([]byte, error) {
	keyboard, _ := e.Stdin.(*os.File)
	var value []byte
	var err error
	switch onTerminal := terminal.IsTerminal(e.Stdin); {
	case f.file == "" && onTerminal:
		return prompt(e, keyboard, name)
	case f.file == "" || f.file == "-":
		if e.TokenFromStdin() {
			return nil, command.Usagef(cmd, "standard input has the token already: give a file with the value")
		}
		value, err = io.ReadAll(io.LimitReader(e.Stdin, maxValue+1))
	default:
		value, err = readFile(f.file)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the value of secret %s: %w", name, err)
	case len(value) == 0:
		return nil, fmt.Errorf("the value of secret %s is empty: give a file, pipe the value into this command, or run it on a terminal to type it", name)
	case len(value) > maxValue:
		return nil, fmt.Errorf("the value of secret %s has more than 1 MiB, and a secret is at most that long: keep larger data in a volume or an object", name)
	case bytes.HasSuffix(value, []byte{'\n'}) && terminal.IsTerminal(e.Stderr):
		e.Note("The value ends with a newline, which is kept as a part of it. To leave it out: printf %%s VALUE | cloudless secret set %s -", name)
	}
	return value, nil
}

// readFile reads one byte more than a value may have, at most.
func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(io.LimitReader(file, maxValue+1))
}

// prompt asks for a value twice, without showing it.
func prompt(e *command.Env, keyboard *os.File, name string) ([]byte, error) {
	ask := func(what string) ([]byte, error) {
		fmt.Fprintf(e.Stderr, "%s of secret %s: ", what, name)
		value, err := term.ReadPassword(int(keyboard.Fd()))
		fmt.Fprintln(e.Stderr)
		if err != nil {
			return nil, fmt.Errorf("read the value of secret %s: %w", name, err)
		}
		return bytes.TrimSuffix(value, []byte{'\n'}), nil
	}
	value, err := ask("Value")
	if err != nil {
		return nil, err
	}
	again, err := ask("The same again, value")
	if err != nil {
		return nil, err
	}
	defer clear(again)
	switch {
	case len(value) == 0:
		return nil, errors.New("the value is empty: nothing was changed")
	case !bytes.Equal(value, again):
		clear(value)
		return nil, errors.New("the two values differ: nothing was changed; run the command again")
	}
	return value, nil
}
