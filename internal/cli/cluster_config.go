package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

func (c *cli) clusterConfigCommand() *cobra.Command {
	cmd := command.Group("config", "See and change how the cluster behaves", "  cloudless cluster config get\n"+
		"  cloudless cluster config set desiredVoters=5 liveness.silence=5s --comment \"a slow link\"\n"+
		"  cloudless cluster config history\n"+
		"  cloudless cluster config rollback 3",
		c.configGetCommand(), c.configSetCommand(), c.configHistoryCommand(), c.configDiffCommand(), c.configRollbackCommand())
	cmd.Long = "Config shows and changes the configuration of the cluster. Every change makes a new version, which takes effect at\n" +
		"once on all servers and nodes, without a restart. Older versions can be compared and restored."
	return cmd
}

func (c *cli) configGetCommand() *cobra.Command {
	request := &cloudlessv1.GetConfigurationRequest{}
	cmd := &cobra.Command{
		Use:   "get",
		Short: "Show every setting and which of them are defaults",
		Long: "Get shows every setting of the configuration in force, or of an older version. Edit the output of -o yaml and set it\n" +
			"again with: cloudless cluster config set -f FILE",
		Example: "  cloudless cluster config get\n  cloudless cluster config get --version 3\n  cloudless cluster config get -o yaml > cluster.yaml",
		Args:    command.ExactArgs(),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			shown, err := cl.Cluster().GetConfiguration(ctx, request)
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return c.PrintObject(shown)
			}
			return c.printConfiguration(shown)
		}),
	}
	cmd.Flags().Uint64Var(&request.Number, "version", 0, "`number` of an older version (default: the one in force)")
	_ = cmd.RegisterFlagCompletionFunc("version", c.completeBy(configurationNumbers, true))
	return cmd
}

func (c *cli) printConfiguration(shown *cloudlessv1.Configuration) error {
	if err := c.Printf("Configuration %d, set %s by %s\n\n", shown.GetSpec().GetNumber(), when(shown), authorOf(shown)); err != nil {
		return err
	}
	t := terminal.NewTable(c.Stdout, "SETTING", "VALUE", "FROM")
	for _, s := range spec.Settings(shown.GetSpec().GetCluster()) {
		from := "set"
		if s.Default {
			from = "default"
		}
		t.Row(s.Key, s.Value, from)
	}
	return t.Flush()
}

func when(shown *cloudlessv1.Configuration) string {
	return shown.GetMetadata().GetCreateTime().AsTime().Local().Format(time.DateTime)
}

// authorOf is the author's SPIFFE id without the cluster, which is always the same.
func authorOf(shown *cloudlessv1.Configuration) string {
	path := strings.TrimPrefix(shown.GetSpec().GetAuthor(), "spiffe://")
	if _, rest, ok := strings.Cut(path, "/"); ok {
		return rest
	}
	return cmp.Or(path, "the cluster")
}

// configChange are the arguments and flags of set.
type configChange struct {
	file, comment string
	unset         []string
	settings      []string
	dryRun        bool
}

func (c *cli) configSetCommand() *cobra.Command {
	var change configChange
	cmd := &cobra.Command{
		Use:   "set KEY=VALUE... | -f FILE",
		Short: "Change settings, or the whole configuration from a file",
		Long: "Set makes a new version of the configuration and prints what it changes. Get shows the keys. An empty value, or\n" +
			"--unset, restores a default. The key of a node class's setting contains the name of the class; setting its labels\n" +
			"creates the class. A file holds a whole Configuration, as get -o yaml prints it. Settings that the file leaves out\n" +
			"get their defaults. If the file has a version number, that version must still be in force.",
		Example: "  cloudless cluster config set desiredVoters=5 liveness.silence=5s\n" +
			"  cloudless cluster config set retention.events= --comment \"back to the default\"\n" +
			"  cloudless cluster config set nodeClasses.laptops.labels=kind=laptop nodeClasses.laptops.liveness.reconnect=5m\n" +
			"  cloudless cluster config set --unset nodeClasses.laptops\n" +
			"  cloudless cluster config set -f cluster.yaml --dry-run",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			change.settings = args
			if err := change.check(cmd); err != nil {
				return err
			}
			return c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				return c.setConfiguration(ctx, cl, cmd, change)
			})(cmd, args)
		},
		ValidArgsFunction: c.completeSettings,
	}
	cmd.Flags().StringVarP(&change.file, "file", "f", "", "`file` with the whole configuration, - for standard input")
	cmd.Flags().StringArrayVar(&change.unset, "unset", nil, "`key` to reset to its default; may be repeated")
	cmd.Flags().StringVar(&change.comment, "comment", "", "reason for the change, a `text` for the history")
	cmd.Flags().BoolVar(&change.dryRun, "dry-run", false, "only show what would change")
	_ = cmd.RegisterFlagCompletionFunc("unset", c.completeBy(settingKeys, true))
	return cmd
}

func (change configChange) check(cmd *cobra.Command) error {
	byKey := len(change.settings)+len(change.unset) > 0
	switch {
	case change.file == "" && !byKey:
		return command.Usagef(cmd, "there is nothing to set: give KEY=VALUE, such as liveness.silence=5s, or a file with -f")
	case change.file != "" && byKey:
		return command.Usagef(cmd, "a file holds the whole configuration: give either -f or KEY=VALUE")
	}
	for _, s := range change.settings {
		if _, _, err := spec.ParseSetting(s); err != nil {
			return command.Usagef(cmd, "%w", err)
		}
	}
	return nil
}

// maxConflicts limits the retries when another user changes the configuration at the same time.
const maxConflicts = 8

func (c *cli) setConfiguration(ctx context.Context, cl *client.Client, cmd *cobra.Command, change configChange) error {
	for attempt := 1; ; attempt++ {
		current, err := cl.Cluster().GetConfiguration(ctx, &cloudlessv1.GetConfigurationRequest{})
		if err != nil {
			return err
		}
		desired, err := c.desiredConfiguration(cmd, current, change)
		if err != nil {
			return err
		}
		made, err := cl.Cluster().SetConfiguration(ctx, &cloudlessv1.SetConfigurationRequest{Configuration: desired, DryRun: change.dryRun})
		if status.Code(err) == codes.Aborted && change.file == "" && attempt < maxConflicts {
			continue // the same settings can go on top of the newer version
		}
		if err != nil {
			return err
		}
		return c.printChange(current, made, change.dryRun)
	}
}

// desiredConfiguration is the configuration to send: that of the file, or the one in force with the changed settings.
func (c *cli) desiredConfiguration(cmd *cobra.Command, current *cloudlessv1.Configuration, change configChange) (*cloudlessv1.Configuration, error) {
	desired := &cloudlessv1.Configuration{ApiVersion: spec.APIVersion, Kind: spec.KindConfiguration, Spec: &cloudlessv1.ConfigurationSpec{}}
	if change.file != "" {
		data, err := c.readFile(change.file)
		if err != nil {
			return nil, err
		}
		given, err := spec.DecodeConfiguration(change.file, data)
		if err != nil {
			return nil, err
		}
		desired.Spec.Number = cmp.Or(given.GetSpec().GetNumber(), current.GetSpec().GetNumber())
		desired.Spec.Cluster = given.GetSpec().GetCluster()
		desired.Spec.Comment = change.comment
		if given.GetSpec().GetAuthor() == "" { // with an author, the file is an older version, and so is its comment
			desired.Spec.Comment = cmp.Or(change.comment, given.GetSpec().GetComment())
		}
		return desired, nil
	}
	desired.Spec.Number, desired.Spec.Comment = current.GetSpec().GetNumber(), change.comment
	desired.Spec.Cluster = proto.CloneOf(current.GetSpec().GetCluster())
	return desired, change.apply(cmd, desired.GetSpec().GetCluster())
}

func (change configChange) apply(cmd *cobra.Command, settings *cloudlessv1.ClusterSpec) error {
	for _, key := range change.unset {
		if err := setSetting(cmd, settings, key, ""); err != nil {
			return err
		}
	}
	for _, s := range change.settings {
		key, value, err := spec.ParseSetting(s)
		if err == nil {
			err = setSetting(cmd, settings, key, value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func setSetting(cmd *cobra.Command, settings *cloudlessv1.ClusterSpec, key, value string) error {
	err := spec.Set(settings, key, value)
	if unknown, ok := errors.AsType[*spec.UnknownSettingError](err); ok {
		return command.Usagef(cmd, "%w%s", unknown, command.DidYouMean(key, slices.Values(unknown.Known), "see them all with: cloudless cluster config get"))
	}
	if err != nil {
		return command.Usagef(cmd, "%w", err)
	}
	return nil
}

// printChange prints what a change has done, or would do.
func (c *cli) printChange(before, made *cloudlessv1.Configuration, dryRun bool) error {
	if !c.ForPeople() {
		return c.PrintObject(made)
	}
	number := made.GetSpec().GetNumber()
	if number == before.GetSpec().GetNumber() {
		return c.Printf("nothing differs from configuration %d, which is in force\n", number)
	}
	if err := c.printSettings(made); err != nil {
		return err
	}
	if dryRun {
		return c.Printf("this would be configuration %d; nothing was changed\n", number)
	}
	return c.Printf("configuration %d is in force\n", number)
}

// printSettings prints what a version has changed.
func (c *cli) printSettings(made *cloudlessv1.Configuration) error {
	for _, change := range made.GetSpec().GetChanges() {
		if err := c.Printf("%s\n", settingChange(change.GetPath(), change.GetBefore(), change.GetAfter())); err != nil {
			return err
		}
	}
	return nil
}

// settingChange is a changed setting in one line. A setting that was not set had its default.
func settingChange(key, before, after string) string {
	if standard := spec.SettingDefault(key); standard != "" {
		standard += " (default)"
		before, after = cmp.Or(before, standard), cmp.Or(after, standard)
	}
	return fieldChange(key, before, after)
}

func (c *cli) configHistoryCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "history",
		Short:   "List the versions of the configuration and what each has changed",
		Long:    "History lists the versions that are kept, newest first: when each was set, by whom, and what it changed.",
		Example: "  cloudless cluster config history\n  cloudless cluster config history -o json",
		Args:    command.ExactArgs(),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			versions, err := client.AllPages(func(page *cloudlessv1.Page) ([]*cloudlessv1.Configuration, string, error) {
				answer, err := cl.Cluster().ListConfigurations(ctx, &cloudlessv1.ListConfigurationsRequest{Page: page})
				return answer.GetItems(), answer.GetNext(), err
			})
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return command.PrintList(c.Env, versions)
			}
			t := terminal.NewTable(c.Stdout, "VERSION", "SET", "AUTHOR", "CHANGES")
			for _, version := range versions {
				changes := versionChanges(version)
				t.Row(strconv.FormatUint(version.GetSpec().GetNumber(), 10), when(version), authorOf(version), changes[0])
				for _, change := range changes[1:] {
					t.Continue(change)
				}
			}
			return t.Flush()
		}),
	}
}

// versionChanges lists what a version has changed, at least one line.
func versionChanges(version *cloudlessv1.Configuration) []string {
	var lines []string
	if to := version.GetSpec().GetRolledBackTo(); to != 0 {
		lines = append(lines, fmt.Sprintf("back to %d", to))
	}
	if comment := version.GetSpec().GetComment(); comment != "" {
		lines = append(lines, "("+comment+")")
	}
	for _, change := range version.GetSpec().GetChanges() {
		lines = append(lines, settingChange(change.GetPath(), change.GetBefore(), change.GetAfter()))
	}
	if len(lines) == 0 {
		return []string{"founded"}
	}
	return lines
}

func (c *cli) configDiffCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff [A [B]]",
		Short: "Show what differs between two versions",
		Long: "Diff shows what differs from version A to version B. Without B it compares A with the version in force. Without\n" +
			"both it shows the last change.",
		Example: "  cloudless cluster config diff\n  cloudless cluster config diff 3\n  cloudless cluster config diff 3 5",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 2 {
				return command.Usagef(cmd, "two versions can be compared, not %d", len(args))
			}
			for _, arg := range args {
				if _, err := configurationNumber(cmd, arg); err != nil {
					return err
				}
			}
			return nil
		},
		ValidArgsFunction: c.completeBy(configurationNumbers, true),
	}
	cmd.RunE = c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
		a, b, err := twoConfigurations(ctx, cl, cmd, args)
		if err != nil {
			return err
		}
		changes := spec.DiffCluster(a.GetSpec().GetCluster(), b.GetSpec().GetCluster())
		if !c.ForPeople() {
			shown := &cloudlessv1.ConfigurationSpec{Number: b.GetSpec().GetNumber()}
			for _, change := range changes {
				shown.Changes = append(shown.Changes, &cloudlessv1.FieldChange{Path: change.Field, Before: change.Old, After: change.New})
			}
			return c.PrintObject(shown)
		}
		if len(changes) == 0 {
			return c.Printf("configurations %d and %d do not differ\n", a.GetSpec().GetNumber(), b.GetSpec().GetNumber())
		}
		for _, change := range changes {
			if err := c.Printf("%s\n", settingChange(change.Field, change.Old, change.New)); err != nil {
				return err
			}
		}
		return nil
	})
	return cmd
}

func twoConfigurations(ctx context.Context, cl *client.Client, cmd *cobra.Command, args []string) (a, b *cloudlessv1.Configuration, err error) {
	get := func(number uint64) (*cloudlessv1.Configuration, error) {
		return cl.Cluster().GetConfiguration(ctx, &cloudlessv1.GetConfigurationRequest{Number: number})
	}
	var numbers [2]uint64 // 0 is the one in force
	for i, arg := range args {
		if numbers[i], err = configurationNumber(cmd, arg); err != nil {
			return nil, nil, err
		}
	}
	if b, err = get(numbers[1]); err != nil {
		return nil, nil, err
	}
	if len(args) == 0 {
		if numbers[0] = b.GetSpec().GetNumber() - 1; numbers[0] == 0 {
			return b, b, nil // the first one has changed nothing
		}
	}
	a, err = get(numbers[0])
	return a, b, err
}

func configurationNumber(cmd *cobra.Command, arg string) (uint64, error) {
	n, err := strconv.ParseUint(arg, 10, 64)
	if err != nil || n == 0 {
		return 0, command.Usagef(cmd, "%q is not the number of a version: see them with: cloudless cluster config history", arg)
	}
	return n, nil
}

func (c *cli) configRollbackCommand() *cobra.Command {
	request := &cloudlessv1.RollbackConfigurationRequest{}
	cmd := &cobra.Command{
		Use:     "rollback VERSION",
		Short:   "Restore an older version",
		Long:    "Rollback makes a new version that equals an older one. It is refused if the cluster has outgrown that version.",
		Example: "  cloudless cluster config rollback 3 --comment \"it was better before\"\n  cloudless cluster config rollback 3 --dry-run",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := command.ExactArgs("VERSION")(cmd, args); err != nil {
				return err
			}
			_, err := configurationNumber(cmd, args[0])
			return err
		},
		ValidArgsFunction: c.completeBy(configurationNumbers, false),
	}
	cmd.RunE = c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
		var err error
		if request.Number, err = configurationNumber(cmd, args[0]); err != nil {
			return err
		}
		current, err := cl.Cluster().GetConfiguration(ctx, &cloudlessv1.GetConfigurationRequest{})
		if err != nil {
			return err
		}
		made, err := cl.Cluster().RollbackConfiguration(ctx, request)
		if err != nil {
			return err
		}
		return c.printChange(current, made, request.GetDryRun())
	})
	cmd.Flags().StringVar(&request.Comment, "comment", "", "reason for the change, a `text` for the history")
	cmd.Flags().BoolVar(&request.DryRun, "dry-run", false, "only show what would change")
	return cmd
}

// completeSettings offers setting keys, each with its =.
func (c *cli) completeSettings(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	if strings.Contains(typed, "=") {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	keys := c.ask(cmd.Context(), settingKeys, nil, typed)
	for i := range keys {
		keys[i] += "="
	}
	return keys, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}

func settingKeys(ctx context.Context, _ *cli, cl *client.Client) ([]string, error) {
	current, err := cl.Cluster().GetConfiguration(ctx, &cloudlessv1.GetConfigurationRequest{})
	return spec.SettingKeys(current.GetSpec().GetCluster()), err
}

func configurationNumbers(ctx context.Context, _ *cli, cl *client.Client) ([]string, error) {
	answer, err := cl.Cluster().ListConfigurations(ctx, &cloudlessv1.ListConfigurationsRequest{Page: &cloudlessv1.Page{Size: 1000}})
	var all []string
	for _, version := range answer.GetItems() {
		all = append(all, strconv.FormatUint(version.GetSpec().GetNumber(), 10))
	}
	return all, err
}
