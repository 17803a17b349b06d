package programs

import "embed"

// The directory is embedded rather than the file, so that a tree without built programs
// compiles; only that of this architecture, so that a binary carries no program that it could
// not run.
//
//go:embed embedded/arm64
var embedded embed.FS
