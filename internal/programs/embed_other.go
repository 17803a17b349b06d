//go:build !amd64 && !arm64

package programs

import "embed"

// embedded is empty: make builds no programs for this architecture.
var embedded embed.FS
