// Package relay carries packets between machines that have no direct path: each keeps a connection to a server, and
// the server copies frames from one connection to another.
//
// The package knows frames and connections. It must not know what a packet contains, nor how a connection was
// authenticated: its caller says whose a connection is.
package relay
