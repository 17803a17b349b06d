//go:build !linux

package deadpeer

import "syscall"

// limitUnanswered does nothing: keepalive probes are all that these systems offer.
func limitUnanswered(_, _ string, _ syscall.RawConn) error { return nil }
