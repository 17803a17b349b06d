package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/secret"
	"github.com/cloudless/cloudless/internal/cli/stream"
	"github.com/cloudless/cloudless/internal/cli/wait"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/spec"
)

type runFlags struct {
	wait.Flags
	kindFlags
	name, image, network, restart, user, workdir string
	cpu, memory, lostAfter                       string
	replicas, priority                           int32
	env, envFiles, publish, labels, onlyOn       []string
	secrets                                      []string
	update, detach, remove, singleton, identity  bool
	securityFlags
}

func (c *cli) runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:        "run ./PROGRAM|IMAGE [--name NAME] [-- ARG...]",
		SuggestFor: []string{"start"},
		Short:      "Run a local program or an image",
		Long: "Run creates a workload. An argument that begins with a dot or a slash is a static Linux program on this machine:\n" +
			"run pushes it as an image to the cluster's own registry. Any other argument is the name of an image. When a job\n" +
			"has ended, run shows its output.",
		Example: "  cloudless run ./hello --name web --publish 8080:8080 -- --greeting hi\n" +
			"  cloudless run docker.io/library/nginx:1.27 --replicas 2\n" +
			"  cloudless run ./indexer --only-on kind=laptop --lost-after 1h\n" +
			"  cloudless run ./ledger --singleton\n" +
			"  cloudless run ./parser --sandbox gvisor --security-profile restricted --user 1000:1000\n" +
			"  cloudless run ./import --kind job --completions 8 --parallelism 2\n" +
			"  cloudless run ./migrate --kind job --rm --env-file ./production.env\n" +
			"  cloudless run ./backup --schedule \"30 3 * * *\" --time-zone Europe/Berlin",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || cmd.ArgsLenAtDash() == 0 {
				return command.Usagef(cmd, "the program or image is missing: %s", cmd.UseLine())
			}
			if len(args) > 1 && cmd.ArgsLenAtDash() != 1 {
				return command.Usagef(cmd, "%q is too much: write -- before the arguments of the program", args[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.checkRemoval(cmd); err != nil {
				return err
			}
			return c.run(cmd, f, args[0], args[1:])
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.name, "name", "", "`name` of the workload (default: that of the program or image)")
	flags.Int32Var(&f.replicas, "replicas", 1, "how many replicas run")
	flags.Int32Var(&f.priority, "priority", spec.DefaultPriority, "0 to 1000; higher ones are placed first, and above 100 they may preempt lower ones")
	flags.StringArrayVarP(&f.env, "env", "e", nil, "environment variable `KEY=VALUE`, or KEY to copy it from here; may be repeated")
	flags.StringArrayVar(&f.envFiles, "env-file", nil, "`file` with KEY=VALUE lines; --env takes precedence; may be repeated")
	flags.StringArrayVar(&f.secrets, "secret", nil, "secret as a variable, `NAME=VARIABLE`, or as a file, NAME:/path; may be repeated")
	flags.StringArrayVarP(&f.publish, "publish", "p", nil, "publish a port on the nodes, `HOST:PORT[/udp]`, such as 8080:80, http=8080:80 or 127.0.0.1:8080:80; may be repeated")
	flags.StringVar(&f.cpu, "cpu", "", "`CPU` limit of each replica, such as 500m or 2")
	flags.StringVar(&f.memory, "memory", "", "`memory` limit of each replica, such as 256Mi")
	flags.StringVar(&f.network, "network", "", "network: node (default; an address of its own), host (the machine's own) or none")
	flags.StringVar(&f.restart, "restart", "", "when to restart a replica that ended: always (default), on-failure or never")
	flags.StringVar(&f.lostAfter, "lost-after", "", "`time` after which replicas of an unreachable node are replaced, such as 1h")
	flags.BoolVar(&f.singleton, "singleton", false, "never run two replicas at once, even if the network is cut")
	flags.BoolVar(&f.identity, "identity", false, "give each replica certificates and tokens of its own (SPIFFE Workload API)")
	flags.StringArrayVarP(&f.labels, "label", "l", nil, "label `KEY=VALUE` of the workload; may be repeated")
	flags.StringArrayVar(&f.onlyOn, "only-on", nil, "label `KEY=VALUE` that a node must have; may be repeated")
	flags.StringVar(&f.image, "image", "", "`name` of the image for the program (default: that of the program)")
	flags.StringVar(&f.user, "user", "", "`user` to run as, such as 1000:1000")
	flags.StringVar(&f.workdir, "workdir", "", "working `folder`")
	flags.BoolVar(&f.update, "update", false, "change the workload if it exists already")
	flags.BoolVarP(&f.detach, "detach", "d", false, "do not wait, the same as --wait=false")
	flags.BoolVar(&f.remove, "rm", false, "remove the job after it has ended and its output is shown")
	f.kindFlags.register(cmd)
	f.securityFlags.register(cmd)
	f.Flags.Register(cmd, "it runs, or a job is done")
	return cmd
}

func (c *cli) run(cmd *cobra.Command, f runFlags, what string, args []string) error {
	f.changed = cmd.Flags().Changed
	workload, err := f.workload(c.Namespace, what, args)
	if err != nil {
		return command.Usagef(cmd, "%w", err)
	}
	return c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
		if workload.Spec.Image, err = wholeImage(ctx, cl, workload.GetSpec().GetImage()); err != nil {
			return err
		}
		if err := spec.Validate(workload); err != nil {
			return err
		}
		if isProgram(what) {
			err := c.pushProgram(ctx, cl, what, workload.GetSpec().GetImage())
			if own := c.Namespace + "/" + workload.GetSpec().GetImage(); f.image == "" && refusedPush(err) {
				workload.Spec.Image = own // a token for one namespace has images of its own there
				err = c.pushProgram(ctx, cl, what, own)
			}
			if err != nil {
				return err
			}
		}
		made, result, err := f.create(ctx, cl, workload)
		if err != nil {
			return hint(err, what)
		}
		return c.reportRun(ctx, cl, f, made, result)
	})(cmd, nil)
}

func (c *cli) reportRun(ctx context.Context, cl *client.Client, f runFlags, made *cloudlessv1.Workload, result string) error {
	if c.ForPeople() {
		if err := c.Printf("workload %s %s\n", made.GetMetadata().GetName(), result); err != nil {
			return err
		}
	}
	var waited error
	if f.On && !f.detach {
		action := spec.ActionUpdate
		if result == done[spec.ActionUnchanged] {
			action = spec.ActionUnchanged
		}
		now, err := f.ForWorkload(ctx, c.Env, cl, action, made)
		if waited = c.endJob(ctx, cl, f, made, err); waited != nil && !wait.EndedDeployment(waited) {
			return waited
		}
		made = now
	}
	if c.ForPeople() {
		return waited
	}
	// Programs get the workload even if its deployment failed or was rolled back.
	return cmp.Or(c.PrintObject(made), waited)
}

// workload builds the workload from the flags.
func (f *runFlags) workload(namespace, what string, args []string) (*cloudlessv1.Workload, error) {
	name := f.name
	if name == "" {
		if name = nameOf(what); name == "" {
			return nil, fmt.Errorf("no name can be made of %.64q: give one with --name", what)
		}
	}
	env, err := environment(f.envFiles, f.env)
	if err != nil {
		return nil, err
	}
	secrets, err := secret.Refs(f.secrets)
	if err != nil {
		return nil, err
	}
	labels, err := command.ParsePairs("label", f.labels, nil)
	if err != nil {
		return nil, err
	}
	onlyOn, err := command.ParsePairs("label", f.onlyOn, nil)
	if err != nil {
		return nil, err
	}
	s := &cloudlessv1.WorkloadSpec{
		Image: f.imageName(what), Args: args, Env: env, Secrets: secrets,
		Network: f.network, User: f.user, WorkingDir: f.workdir, LostAfter: f.lostAfter, Singleton: f.singleton,
	}
	f.apply(s, f.replicas)
	s.Sandbox, s.Security = f.sandbox, f.security()
	if f.changed("priority") {
		s.Priority = &f.priority
	}
	for _, p := range f.publish {
		port, err := command.ParsePublish(p)
		if err != nil {
			return nil, err
		}
		s.Ports = append(s.Ports, port)
	}
	if f.cpu != "" || f.memory != "" {
		s.Resources = &cloudlessv1.Resources{Limits: &cloudlessv1.ResourceAmounts{Cpu: f.cpu, Memory: f.memory}}
	}
	if f.identity {
		s.Identity = &cloudlessv1.WorkloadIdentity{}
	}
	if f.restart != "" {
		s.Restart = &cloudlessv1.Restart{Policy: f.restart}
	}
	if onlyOn != nil {
		s.Placement = &cloudlessv1.Placement{Labels: onlyOn}
	}
	return &cloudlessv1.Workload{
		ApiVersion: spec.APIVersion,
		Kind:       spec.KindWorkload,
		Metadata:   &cloudlessv1.Metadata{Name: name, Namespace: namespace, Labels: labels},
		Spec:       s,
	}, nil
}

func (f *runFlags) create(ctx context.Context, cl *client.Client, w *cloudlessv1.Workload) (*cloudlessv1.Workload, string, error) {
	if f.update {
		answer, err := cl.Workloads().ApplyWorkload(ctx, &cloudlessv1.ApplyWorkloadRequest{Workload: w})
		return answer.GetWorkload(), answer.GetResult(), err
	}
	made, err := cl.Workloads().CreateWorkload(ctx, &cloudlessv1.CreateWorkloadRequest{Workload: w})
	if status.Code(err) == codes.AlreadyExists {
		err = fmt.Errorf("%w: give another --name, or change it with --update", err)
	}
	return made, "created", err
}

// hint adds a hint to the error if the image's name is also the name of a local program.
func hint(err error, what string) error {
	if info, stat := os.Stat(what); !isProgram(what) && stat == nil && info.Mode().IsRegular() {
		return fmt.Errorf("%w: to run the program %s of this folder, write ./%s", err, what, what)
	}
	return err
}

func isProgram(what string) bool {
	return strings.HasPrefix(what, ".") || filepath.IsAbs(what)
}

// nameOf derives a workload's name from a path or an image. It may be empty.
func nameOf(what string) string {
	base := filepath.Base(what)
	if !isProgram(what) {
		base, _, _ = strings.Cut(base, "@")
		base, _, _ = strings.Cut(base, ":")
	}
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, base)
	if len(name) > 63 {
		name = name[:63]
	}
	return strings.Trim(name, "-")
}

// imageName is the given image, or the image for a program.
func (f *runFlags) imageName(what string) string {
	switch {
	case !isProgram(what):
		return what
	case f.image != "":
		return f.image
	default:
		return nameOf(what) + ":" + image.DefaultTag
	}
}

// pushProgram pushes a program as an image to the cluster's registry.
func (c *cli) pushProgram(ctx context.Context, cl *client.Client, path, local string) error {
	name, err := image.ParseName(local)
	if err != nil {
		return err
	}
	if !name.Local() {
		return fmt.Errorf("--image %s names another registry: a program is pushed to the cluster's own, so give a name without a registry", local)
	}
	return c.push(ctx, cl, name, path, false)
}

// refusedPush reports whether the registry has refused an image because the caller may not push it.
func refusedPush(err error) bool {
	refused, ok := errors.AsType[*transport.Error](err)
	return ok && refused.StatusCode == http.StatusForbidden
}

// environment merges the variables of the files in order, and then those of the flags. Later values win.
func environment(files, pairs []string) (map[string]string, error) {
	all := map[string]string{}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--env-file: %w", err)
		}
		values, err := parseEnvFile(path, string(text), os.LookupEnv)
		if err != nil {
			return nil, fmt.Errorf("--env-file: %w", err)
		}
		maps.Copy(all, values)
	}
	values, err := command.ParsePairs("environment variable", pairs, os.LookupEnv)
	if err != nil {
		return nil, err
	}
	maps.Copy(all, values)
	if len(all) == 0 {
		return nil, nil
	}
	return all, nil
}

// parseEnvFile parses KEY=VALUE lines, or KEY to look the value up. It skips empty lines and those that begin with #.
// Values are literal, with quotes and spaces.
func parseEnvFile(name, text string, lookup func(string) (string, bool)) (map[string]string, error) {
	values := map[string]string{}
	number := 0
	for line := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		number++
		line = strings.TrimLeft(strings.TrimRight(line, "\r\n"), " \t")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, value, found := strings.Cut(line, "=")
		key = strings.TrimSpace(key)
		if !found {
			value, found = lookup(key)
		}
		switch {
		case key == "" || strings.ContainsAny(key, " \t"):
			return nil, fmt.Errorf("%s, line %d: %.64q is no variable: write KEY=VALUE", name, number, line)
		case !found:
			return nil, fmt.Errorf("%s, line %d: %.64s has no value, and the environment has none for it: write %.64s=VALUE", name, number, key, key)
		case strings.Contains(value, "\r"):
			return nil, fmt.Errorf("%s, line %d: the value of %.64s has a line break in it", name, number, key)
		}
		values[key] = value
	}
	return values, nil
}

// checkRemoval refuses --rm for workloads that are not jobs, and without waiting for the job's end.
func (f *runFlags) checkRemoval(cmd *cobra.Command) error {
	switch {
	case !f.remove:
		return nil
	case f.kind != spec.KindJob:
		return command.Usagef(cmd, "--rm is for jobs, which end by themselves: add --kind job, or remove the workload with: cloudless workload rm")
	case f.detach || !f.On:
		return command.Usagef(cmd, "--rm has to wait for the end of the job: leave out --detach and --wait=false")
	}
	return nil
}

// endJob shows the output of a job, even if the wait for it failed, and removes the job with --rm.
func (c *cli) endJob(ctx context.Context, cl *client.Client, f runFlags, made *cloudlessv1.Workload, waited error) error {
	if made.GetSpec().GetKind() != spec.KindJob || ctx.Err() != nil {
		return waited
	}
	if c.ForPeople() {
		waited = errors.Join(waited, stream.Output(ctx, c.Env, cl, made.GetMetadata()))
	}
	if !f.remove {
		return waited
	}
	meta := made.GetMetadata()
	now, err := cl.Workloads().GetWorkload(ctx, &cloudlessv1.GetWorkloadRequest{Namespace: meta.GetNamespace(), Name: meta.GetName()})
	if err != nil {
		return errors.Join(waited, err)
	}
	if phase := now.GetStatus().GetPhase(); phase != spec.PhaseCompleted && phase != spec.PhaseFailed {
		return errors.Join(waited, fmt.Errorf("job %s has not ended and is not removed: remove it with: cloudless workload rm %s", meta.GetName(), meta.GetName()))
	}
	if failed, ok := errors.AsType[*wait.JobFailedError](waited); ok {
		failed.Removed = true
	}
	_, err = cl.Workloads().DeleteWorkload(ctx, &cloudlessv1.DeleteWorkloadRequest{Namespace: meta.GetNamespace(), Name: meta.GetName()})
	return errors.Join(waited, err)
}

// securityFlags say what the program may do on its machine.
type securityFlags struct {
	sandbox, profile         string
	capAdd, capDrop, devices []string
	userNamespace            bool
	userNamespaceGiven       func() bool
}

func (f *securityFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.sandbox, "sandbox", "", "run on a kernel of its own: gvisor")
	flags.StringVar(&f.profile, "security-profile", "", "`profile` of what the program may do: restricted, default or privileged")
	flags.StringArrayVar(&f.capAdd, "cap-add", nil, "`capability` that the program has besides, such as NET_RAW; may be repeated")
	flags.StringArrayVar(&f.capDrop, "cap-drop", nil, "`capability` that the program lacks, or ALL; may be repeated")
	flags.BoolVar(&f.userNamespace, "user-namespace", false, "root of the program is nobody on its node (default: where nodes can)")
	flags.StringArrayVar(&f.devices, "device", nil, "`device` of the node that the program may use, such as /dev/fuse; may be repeated")
	f.userNamespaceGiven = func() bool { return flags.Changed("user-namespace") }
}

// security is nil if no flag was given.
func (f *securityFlags) security() *cloudlessv1.Security {
	s := &cloudlessv1.Security{Profile: f.profile, Devices: f.devices}
	if len(f.capAdd)+len(f.capDrop) > 0 {
		s.Capabilities = &cloudlessv1.Capabilities{Add: f.capAdd, Drop: f.capDrop}
	}
	if f.userNamespaceGiven() {
		s.UserNamespace = &f.userNamespace
	}
	if s.GetProfile() == "" && s.GetCapabilities() == nil && s.UserNamespace == nil && len(s.GetDevices()) == 0 {
		return nil
	}
	return s
}
