// Package command is what all commands of the command line share: the streams and global flags of one run, the
// connection to the cluster that they choose, output as tables, JSON or YAML, checks of arguments and flags, and errors
// with exit codes.
//
// It must not know any single command, nor how a server or agent is built.
package command
