//go:build !amd64 && !arm64

package shim

import "embed"

// embedded is empty: make builds no shim for this architecture.
var embedded embed.FS
