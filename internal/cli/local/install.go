package local

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

// InstallOptions say which service to install.
type InstallOptions struct {
	ServiceOptions
	// Program is the file to install: this program.
	Program string
	// BinDir is the folder that the program is copied to.
	BinDir string
	// Args of the service: the role and its flags, including those whose default depends on the user.
	Args []string
	// DataDir of the role.
	DataDir string
	// DryRun shows the unit and does nothing.
	DryRun bool
}

// ServiceOptions name a service.
type ServiceOptions struct {
	// Name of the service, without .service.
	Name string
	// Root is a prefix of every path; / for this machine.
	Root string
	// Progress is called with what is being done, in a few words. It is never nil.
	Progress func(doing string)
}

// UninstallOptions say which service to remove.
type UninstallOptions struct {
	ServiceOptions
	// Purge stops the containers and removes all data too.
	Purge      bool
	ConfigPath string
}

// serviceFlags are the flags of install and uninstall.
type serviceFlags struct{ name, root string }

func (f *serviceFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.name, "service", "cloudless", "`name` of the service")
	cmd.Flags().StringVar(&f.root, "root", "/", "`folder` that holds the system to change, such as a mounted image; / is this machine")
}

func (f *serviceFlags) options(line *terminal.ProgressLine) (ServiceOptions, error) {
	root, err := filepath.Abs(f.root)
	return ServiceOptions{Name: f.name, Root: root, Progress: line.Show}, err
}

func (c *Commands) Install() *cobra.Command {
	var f serviceFlags
	var binDir string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "install [up|server|agent] [-- FLAG...]",
		Short: "Install cloudless as a systemd service",
		Long: "Install copies this program to --bin-dir and creates a systemd service that runs the given role, by default up,\n" +
			"with the flags after --. Installing again is an upgrade: install replaces the program and the unit and restarts the\n" +
			"service, while containers keep running. If the new version does not start, install restores the old one.\n" +
			"Up is for a machine that is server and node, whether it is the first one or has joined with --role server.\n" +
			"For a machine that is only a node, run cloudless join first.",
		Example: "  cloudless install\n  cloudless install server -- --api-addr 192.0.2.1:7700\n  cloudless install agent --dry-run",
		Args: func(cmd *cobra.Command, args []string) error {
			before := len(args)
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				before = dash
			}
			if before > 1 {
				return command.Usagef(cmd, "%q is too much: write -- before the flags of the role", args[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			line := terminal.NewProgressLine(c.Stderr)
			defer line.Clear()
			o := InstallOptions{BinDir: binDir, DryRun: dryRun}
			var err error
			if o.ServiceOptions, err = f.options(line); err != nil {
				return err
			}
			if o.BinDir, err = filepath.Abs(binDir); err != nil {
				return err
			}
			if o.Program, err = os.Executable(); err != nil {
				return err
			}
			if o.Args, o.DataDir, err = c.roleOfService(cmd, args); err != nil {
				return err
			}
			said, err := c.roles.Install(cmd.Context(), o)
			if err != nil {
				return err
			}
			line.Clear()
			return c.Printf("%s\n", said)
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&binDir, "bin-dir", "/usr/local/bin", "`folder` for the program")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only show the unit")
	return cmd
}

// roleOfService turns the arguments of install into those of the service. A service has no home folder, so paths that
// depend on one are written out.
func (c *Commands) roleOfService(cmd *cobra.Command, args []string) (words []string, dataDir string, err error) {
	name, rest := "up", args
	if len(args) > 0 && cmd.ArgsLenAtDash() != 0 {
		name, rest = args[0], args[1:]
	}
	// A second command line, so that the flags of the role do not set those of this command.
	fresh := &command.Env{Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, Version: c.Version}
	root := c.root(fresh)
	at := slices.IndexFunc(root.Commands(), func(r *cobra.Command) bool {
		return r.Name() == name && slices.Contains([]string{"up", "server", "agent"}, name)
	})
	if at < 0 {
		return nil, "", command.Usagef(cmd, "%q is no role of a service: use up, server or agent (after cloudless join)", name)
	}
	role := root.Commands()[at]
	if err := role.ParseFlags(rest); err != nil {
		return nil, "", command.Usagef(cmd, "cloudless %s: %w", name, err)
	}
	if extra := role.Flags().Args(); len(extra) > 0 {
		return nil, "", command.Usagef(cmd, "%q is no flag of cloudless %s", extra[0], name)
	}
	if role.Flags().Changed("detach") {
		return nil, "", command.Usagef(cmd, "--detach is not for a service: systemd keeps it running")
	}
	given := processFlags{dataDir: role.Flags().Lookup("data-dir").Value.String()}
	if dataDir, err = given.absoluteDataDir(cmd); err != nil {
		return nil, "", err
	}
	if err := role.Flags().Set("data-dir", dataDir); err != nil {
		return nil, "", err
	}
	if name != "agent" { // these write a context with admin credentials
		fresh.Config = cmp.Or(fresh.Config, c.Config)
		path, err := fresh.ConfigPath()
		if err != nil {
			return nil, "", err
		}
		if path, err = filepath.Abs(path); err != nil {
			return nil, "", err
		}
		if err := role.Flags().Set("config", path); err != nil {
			return nil, "", err
		}
	}
	return childArgs(role, nil), dataDir, nil
}

func (c *Commands) Uninstall() *cobra.Command {
	var f serviceFlags
	var purge bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the systemd service",
		Long: "Uninstall stops the service and removes its unit and program. Containers keep running and the data stays, for the\n" +
			"next install. With --purge, uninstall stops the containers and removes everything, like cloudless down --purge.",
		Example: "  cloudless uninstall\n  cloudless uninstall --purge",
		Args:    command.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			line := terminal.NewProgressLine(c.Stderr)
			defer line.Clear()
			o := UninstallOptions{Purge: purge}
			var err error
			if o.ServiceOptions, err = f.options(line); err != nil {
				return err
			}
			if o.ConfigPath, err = c.ConfigPath(); err != nil {
				return err
			}
			said, err := c.roles.Uninstall(cmd.Context(), o)
			line.Clear()
			if errors.Is(err, fs.ErrNotExist) {
				return c.Printf("there is no service %s to uninstall\n", f.name)
			}
			if err != nil {
				return err
			}
			return c.Printf("%s\n", said)
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&purge, "purge", false, "also stop the containers and remove all data, images and logs")
	return cmd
}
