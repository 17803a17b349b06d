// Package stream has the commands logs, exec and cp, which connect this terminal or these files with replicas.
//
// It must not know other commands.
package stream

import "github.com/cloudless/cloudless/internal/cli/command"

// commands is what logs, exec and cp share.
type commands struct{ *command.Env }
