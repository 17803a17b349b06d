// Package stream has the commands logs, exec, cp and forward, which connect this terminal, files or local ports with
// replicas.
//
// It must not know other commands.
package stream

import "github.com/cloudless/cloudless/internal/cli/command"

// commands is what these commands share.
type commands struct{ *command.Env }
