// Package datadir is the data folder of one cloud on this machine: its identity, which process holds it, what it
// belongs to, and what a node keeps about its cluster. One process holds a folder at a time.
//
// It knows paths, files and processes. It must not know the API, the command line, or what a server or an agent does.
package datadir
