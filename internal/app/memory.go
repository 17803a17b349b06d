package app

import (
	"os"
	"runtime/debug"
)

// serverGCPercent lets a server's garbage grow to twice of what it keeps. It
// holds the whole state in memory, and every collection walks all of it: half
// as many are worth the memory. A server without much state is no larger by it.
const serverGCPercent = 200

// tuneMemory is for processes with a server in them. Who sets GOGC knows better.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(serverGCPercent)
	}
}
