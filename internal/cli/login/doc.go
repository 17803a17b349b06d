// Package login has the commands by which a user gets access to clusters and gives it up: login, logout and context. They
// write the client configuration.
//
// It must not know other commands.
package login

import "github.com/cloudless/cloudless/internal/cli/command"

// commands have what every command works with.
type commands struct{ *command.Env }
