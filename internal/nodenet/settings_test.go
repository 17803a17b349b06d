package nodenet

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// What one namespace remembered must not be taken for what its successor did.
func TestNoTwoNamespacesAreTakenForTheSame(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to make network namespaces")
	}
	seen := map[string]bool{}
	for range 5 {
		var ids [2]string
		var errs [3]error
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // never unlocked: the thread and its namespace end here
			errs[0] = unix.Unshare(unix.CLONE_NEWNET)
			ids[0], errs[1] = namespaceID()
			ids[1], errs[2] = namespaceID()
		}()
		<-done
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
		if ids[0] != ids[1] {
			t.Fatalf("one namespace was %s and then %s", ids[0], ids[1])
		}
		if seen[ids[0]] {
			t.Fatalf("a new namespace is called %s, as an earlier one was", ids[0])
		}
		seen[ids[0]] = true
	}
}
