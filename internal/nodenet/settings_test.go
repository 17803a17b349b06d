package nodenet

import (
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The settings of one namespace must not be mistaken for those of its successor, even if
// that has the same inode.
func TestNamespaceIDsAreUnique(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to make network namespaces")
	}
	seen := map[string]bool{}
	inodes := map[uint64]bool{}
	for range 1000 {
		id, inode := passingNamespace(t)
		if seen[id] {
			t.Fatalf("a new namespace is called %s, as an earlier one was", id)
		}
		seen[id] = true
		if inodes[inode] {
			return // reused, and distinguished
		}
		inodes[inode] = true
		time.Sleep(time.Millisecond) // the kernel removes namespaces in its own time
	}
	t.Fatal("the kernel has given no inode away again, so nothing was tested")
}

// passingNamespace creates a network namespace that ends with the call.
func passingNamespace(t *testing.T) (id string, inode uint64) {
	t.Helper()
	var again string
	var own unix.Stat_t
	var errs [4]error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread and its namespace end here
		errs[0] = unix.Unshare(unix.CLONE_NEWNET)
		id, errs[1] = namespaceID()
		again, errs[2] = namespaceID()
		errs[3] = unix.Stat("/proc/thread-self/ns/net", &own)
	}()
	<-done
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	if id != again {
		t.Fatalf("one namespace was %s and then %s", id, again)
	}
	return id, own.Ino
}
