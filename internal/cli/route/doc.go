// Package route has the commands that only routes and certificates have: add, which makes one from flags, and get, which shows
// one to people.
//
// It must not know other commands; those that every kind has are in package cli.
package route
