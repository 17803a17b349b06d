package shim

import "embed"

// The directory is embedded rather than the file, so that a tree without a built shim
// compiles; only that of this architecture, so that a binary carries no shim that it could
// not run.
//
//go:embed embedded/arm64
var embedded embed.FS
