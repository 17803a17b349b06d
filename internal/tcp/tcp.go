// Package tcp makes connections that notice within seconds that the machine at
// the other end has gone without a word: its power was cut, or what leads there.
// It guarantees that neither a connection that is being made, nor one that is
// idle, nor one that has sent something and waits, outlasts that by more than
// half a minute. It must not know what is said on a connection.
package tcp

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
