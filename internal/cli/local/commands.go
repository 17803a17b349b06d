package local

import (
	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/internal/cli/command"
)

// Commands makes the commands for this machine.
type Commands struct {
	*command.Env
	roles Roles
	// root makes a second command line. Install uses it to parse the flags of the role.
	root func(*command.Env) *cobra.Command
}

func New(e *command.Env, roles Roles, root func(*command.Env) *cobra.Command) *Commands {
	return &Commands{Env: e, roles: roles, root: root}
}
