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
	// connectTimeout limits how long connecting may take.
	connectTimeout = 10 * time.Second
	// unansweredTimeout limits how long sent data may stay unacknowledged. The
	// kernel's default is about 15 minutes, and it sends no keepalive probes while
	// data is unacknowledged.
	unansweredTimeout = 10 * time.Second
)

// Dialer returns a dialer for such connections.
func Dialer() *net.Dialer {
	return &net.Dialer{
		Timeout:         connectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
		Control:         limitUnanswered,
	}
}
