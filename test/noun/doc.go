// Package noun adds a kind of object to a copy of the source, as docs/architecture.md says that one is added, and uses it
// as people would.
package noun
