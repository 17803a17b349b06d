// Package app is the only wiring: what a process is made of, in what order its
// parts start, and how they stop. Read the file of a role from top to bottom.
//
// It holds no logic of its own beyond the data folder and who may use it.
package app
