// Package app is the only wiring: what a process is made of, in what order its parts start, and how they stop. Begin
// with app.go, which shows everything that runs.
//
// It decides nothing about the cluster; that is for the packages that it connects.
package app
