// Package spec holds the rules of Cloudless's own API: whether a message is valid and in
// which words it is refused, the defaults, when two specs mean the same, how they differ,
// and how they are written to and read from files.
//
// It guarantees the same words everywhere: the API, the command line and files all end in
// Validate, and a file adds only the line and column. What Normalize returns is valid if
// its input was, and normalizing it again changes nothing.
//
// It is pure and knows only the API's messages: no state, no network, no clock, no driver,
// and no meaning of an image's name beyond its syntax.
package spec

const (
	// APIVersion is the version of the API that objects and files name.
	APIVersion = "cloudless/v1"
	// KindWorkload is the kind of a v1.Workload.
	KindWorkload = "Workload"
	// DefaultNamespace is the namespace of objects that name none.
	DefaultNamespace = "default"
)
