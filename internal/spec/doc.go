// Package spec holds what Cloudless knows about its own contract: whether a
// message is valid and in which words it is refused, what is assumed where a
// user says nothing, when two specs mean the same, how they differ, and how
// they are written to and read from files.
//
// It guarantees that every door gives the same words: the API, the command line
// and files all end in Validate, and a file adds only the line and column. What
// Normalize returns is valid if its input was, and normalizing it again changes
// nothing.
//
// It is pure and knows only the API's messages: no state, no network, no clock,
// no driver, and no meaning of an image's name beyond its syntax.
package spec

const (
	// APIVersion is the version of the contract that objects and files name.
	APIVersion = "cloudless/v1"
	// KindWorkload is the kind of a v1.Workload.
	KindWorkload = "Workload"
	// DefaultNamespace is where an object lives that names no namespace.
	DefaultNamespace = "default"
)
