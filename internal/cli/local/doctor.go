package local

import (
	"fmt"
	"net"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/doctor"
)

// DoctorOptions say what to check.
type DoctorOptions struct {
	// DataDir is an absolute path.
	DataDir string
	// APIAddr is the address of the API, host:port. If it is empty: that of the data folder's server, else of the
	// context's, else DefaultAPIAddr.
	APIAddr string
	// Ports to be published, such as "8080" or "53/udp".
	Ports []string
	// ContainerdAddress is the socket of an external containerd; if empty, the one that was used last.
	ContainerdAddress string
	// ConfigPath and Context name the cluster whose clock is compared.
	ConfigPath, Context string
	// Security asks for what a hardening guide requires of this machine and the cluster, instead of what Cloudless needs.
	Security bool
}

func (c *Commands) Doctor() *cobra.Command {
	var p processFlags
	var o DoctorOptions
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine for problems and show how to fix them",
		Long: "Doctor checks whether this machine can run Cloudless, and changes nothing. It exits with 1 if a check fails, but\n" +
			"not for warnings.\n\n" +
			"With --security, it checks what a hardening guide requires of this machine and of the cluster of the current\n" +
			"context, as far as your role may read it.",
		Example: "  cloudless doctor\n  cloudless doctor --security\n  cloudless doctor --port 8080 --port 53/udp\n  cloudless doctor -o json",
		Args:    command.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.DataDir, err = p.absoluteDataDir(cmd); err != nil {
				return err
			}
			if cmd.Flags().Changed("api-addr") {
				if err := command.CheckAddress(cmd, "--api-addr", o.APIAddr); err != nil {
					return err
				}
			}
			for _, port := range o.Ports {
				if _, _, err := ParsePortUse(port); err != nil {
					return command.Usagef(cmd, "--port: %w", err)
				}
			}
			if o.ConfigPath, err = c.ConfigPath(); err != nil {
				return err
			}
			o.Context = c.Context
			line := terminal.NewProgressLine(c.Stderr)
			line.Show("looking at this machine")
			found, err := c.roles.Doctor(cmd.Context(), o)
			line.Clear()
			if err != nil {
				return err
			}
			if err := c.printFindings(found); err != nil {
				return err
			}
			if doctor.Worst(found) == doctor.Fail {
				return command.Exit(command.ExitError, nil)
			}
			return nil
		},
	}
	p.registerDataDir(cmd)
	cmd.Flags().StringVar(&o.APIAddr, "api-addr", "", "`address` where the API should listen"+listenedBefore)
	cmd.Flags().StringArrayVar(&o.Ports, "port", nil, "`port` that you want to publish: 8080 or 53/udp; may be repeated")
	cmd.Flags().BoolVar(&o.Security, "security", false, "check how well this machine and the cluster are hardened")
	cmd.Flags().StringVar(&o.ContainerdAddress, "containerd-address", "", "`socket` of an external containerd (default: the one that was used last)")
	return cmd
}

// ParsePortUse parses a port such as 8080 or 53/udp.
func ParsePortUse(s string) (network string, number uint16, err error) {
	text, network, found := strings.Cut(s, "/")
	if !found {
		network = "tcp"
	}
	n, err := net.LookupPort(network, text)
	if err != nil || n == 0 || strings.Trim(text, "0123456789") != "" || network != "tcp" && network != "udp" {
		return "", 0, &badPortError{s}
	}
	return network, uint16(n), nil
}

type badPortError struct{ port string }

func (e *badPortError) Error() string {
	return "\"" + e.port + "\" is not a port: write a number from 1 to 65535, and /udp behind it if need be"
}

func (c *Commands) printFindings(found []doctor.Finding) error {
	if !c.ForPeople() {
		return c.PrintValue(struct {
			Level doctor.Level     `json:"level" yaml:"level"`
			Items []doctor.Finding `json:"items" yaml:"items"`
		}{doctor.Worst(found), found})
	}
	t, indent := terminal.NewPlainTable(c.Stdout, 3), 0
	counts := map[doctor.Level]int{}
	for _, f := range found {
		counts[f.Level]++
		indent = t.Reserve(string(f.Level), f.Check, "")
	}
	for _, f := range found {
		t.Row(string(f.Level), f.Check, f.Text)
		if err := t.Flush(); err != nil {
			return err
		}
		if f.Mend == "" {
			continue
		}
		if err := c.Printf("%sfix with: %s\n", strings.Repeat(" ", indent), terminal.Plain(f.Mend)); err != nil {
			return err
		}
	}
	open := ""
	if n := counts[doctor.Unknown]; n > 0 {
		open = fmt.Sprintf(", %d cannot be known", n)
	}
	switch {
	case counts[doctor.Fail] > 0:
		return c.Printf("\n%d of %d checks fail, %d warn%s\n", counts[doctor.Fail], len(found), counts[doctor.Warn], open)
	case counts[doctor.Warn] > 0:
		return c.Printf("\nnothing fails; %d of %d checks warn%s\n", counts[doctor.Warn], len(found), open)
	case open != "":
		return c.Printf("\nnothing fails%s\n", open)
	}
	return c.Printf("\nthis machine has what it needs\n")
}
