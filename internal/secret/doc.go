// Package secret encrypts the values of secrets, and knows which replicas get which of their versions. Every version has
// a data key of its own, which the cluster's key-encryption key wraps (envelope encryption, by Tink): rotating the latter
// only wraps the data keys again. A value is bound to its secret and its version, so that no stored value can be put in
// the place of another.
//
// It reads snapshots and changes nothing. It must not know sessions, nodes or the command line. None of its errors and
// sentences has a value in it.
package secret
