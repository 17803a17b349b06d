package nodes

import (
	"runtime"
	"time"
)

// deafLook is how often a server that is not listening looks whether it does again.
const deafLook = 50 * time.Millisecond

// turns is how often the loop lets all others go first. A heartbeat changes
// hands three times on its way from the socket to here.
const turns = 8

// hearOut returns when heartbeats that have arrived have been heard. That is at
// once on a server that has time, and takes as long as it must on one that has
// not: a node is not silent because nobody here came to listen to it.
func hearOut() {
	for range turns {
		runtime.Gosched()
	}
}
