// Package e2e drives the real binary, as root, against real containers. The stories are
// scripts in testdata; their commands are defined in commands_test.go.
package e2e
