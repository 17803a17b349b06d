// Package deadpeer makes TCP connections that detect a dead peer within seconds,
// after a power cut for example, or when the network between the machines fails.
//
// It guarantees that a connection outlives its peer by at most half a minute, in
// every state: while it is being made, while it is idle, and while it waits for an
// acknowledgement. It must not know what a connection is used for.
package deadpeer

import (
	"net"
	"time"
)

const (
	// connectTimeout is how long the other end may take to answer at all.
	connectTimeout = 10 * time.Second
	// unansweredTimeout is how long what was sent may stay unconfirmed by the
	// other machine. The kernel's own patience is a quarter of an hour, and while
	// something is on its way it does not ask otherwise.
	unansweredTimeout = 10 * time.Second
)

// Dialer connects in this way.
func Dialer() *net.Dialer {
	return &net.Dialer{
		Timeout:         connectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
		Control:         limitUnanswered,
	}
}
