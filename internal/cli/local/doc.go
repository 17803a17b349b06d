// Package local has the commands for this machine: up, server, agent, join, down, install, uninstall, doctor and
// cluster recover. It says what a role is given (Roles), runs it here or in a detached process, and shows its progress.
//
// It must not know how a server or agent is built: package app implements the roles. It does not call the cluster.
package local
