// Package role has the commands about who may do what: role bind and unbind, can-i and whoami.
//
// It must not know other commands; those that every kind has are in package cli.
package role
