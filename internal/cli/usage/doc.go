// Package usage has the commands stats and top, which show what nodes and replicas use: once, or live on a terminal.
//
// It must not know other commands.
package usage
