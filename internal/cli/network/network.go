package network

import (
	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/internal/cli/command"
)

// Network is the command cloudless network.
func Network(e *command.Env) *cobra.Command {
	return command.Group("network", "Show how nodes and replicas reach each other", "  cloudless network status\n  cloudless network usage\n  cloudless network check web api",
		statusCommand(e), usageCommand(e), checkCommand(e))
}
