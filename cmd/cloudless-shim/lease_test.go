package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// leased makes a container with a lease until a time since the boot.
func leased(t *testing.T, until time.Duration) (c *container, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "lease")
	writeLease(t, path, until)
	return newContainer(t, "echo here; while :; do sleep 1000; done", func(s *specs.Spec) {
		s.Annotations = map[string]string{leaseAnnotation: path}
	}), path
}

func writeLease(t *testing.T, path string, until time.Duration) {
	t.Helper()
	if err := os.WriteFile(path, fmt.Appendf(nil, "%020d\n", until.Nanoseconds()), 0o600); err != nil {
		t.Fatal(err)
	}
}

const killed = 128 + 9

func TestContainerEndsWithItsLease(t *testing.T) {
	until := bootTime() + 2*time.Second
	c, _ := leased(t, until)
	c.run()
	c.disconnect() // nothing else is left that could stop it
	waitForEnd(t, int(c.pid))
	if now := bootTime(); now < until {
		t.Errorf("it ended %s before its lease", until-now)
	}
	c.connect()
	c.wait(killed)
}

func TestRenewedLeaseKeepsTheContainerRunning(t *testing.T) {
	first := bootTime() + 500*time.Millisecond
	c, path := leased(t, first)
	writeLease(t, path, first+2*time.Second)
	c.run()
	c.wait(killed)
	if now := bootTime(); now < first+2*time.Second {
		t.Error("it ended with the lease that was renewed")
	}
}

func TestContainerWithoutAReadableLeaseEndsAtOnce(t *testing.T) {
	c, path := leased(t, bootTime()+time.Hour)
	if err := os.WriteFile(path, []byte("soon"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.create(false)
	c.wait(killed)
}
