package shim

import "embed"

// The directory is embedded rather than the file, so that a tree in which the
// shim has not been built compiles; that of this architecture only, so that a
// binary carries no shim that it could not run.
//
//go:embed embedded/amd64
var embedded embed.FS
