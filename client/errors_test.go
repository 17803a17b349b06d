package client

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The client leaves a server that finds no leader and tries the next at once. The error is still that of the first one,
// not that the next is down.
func TestErrorOfAServerWithoutLeaderIsKept(t *testing.T) {
	said, err := status.New(codes.Unavailable, "no server leads").WithDetails(&errdetails.ErrorInfo{Reason: reasonNoLeader})
	if err != nil {
		t.Fatal(err)
	}
	l := &link{addresses: []string{"a:1", "b:1"}}
	l.failed(syscall.ECONNREFUSED)
	got := l.callErr(said.Err())
	if !NoLeader(got) || !strings.Contains(Message(got), "no server leads") {
		t.Errorf("got %q, want what the server said", Message(got))
	}
}

// If a machine is off, or an address is wrong, a router reports it, or the connection times out.
func TestUnreachableMachine(t *testing.T) {
	for _, why := range []error{syscall.EHOSTUNREACH, syscall.ENETUNREACH, os.ErrDeadlineExceeded} {
		l := &link{addresses: []string{"a:1"}}
		l.failed(why)
		if got := Message(l.unreachable(nil)); !strings.Contains(got, "cannot reach the cluster at a:1: it does not answer: check the address and the network") {
			t.Errorf("of %v it is said: %s", why, got)
		}
	}
}
