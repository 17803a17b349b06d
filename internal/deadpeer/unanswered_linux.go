package deadpeer

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

func limitUnanswered(_, _ string, conn syscall.RawConn) error {
	var set error
	err := conn.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unansweredTimeout.Milliseconds()))
	})
	return errors.Join(err, set)
}
