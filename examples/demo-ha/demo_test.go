package main

import (
	"testing"

	"github.com/cloudless/cloudless/examples/internal/tour/tourtest"
)

func TestWholeDemonstration(t *testing.T) {
	tourtest.Build(t, "demo-ha", "../hello").Whole(t,
		`Servers: 3, 3 vote`, `kill -9 \d+`, `acknowledged \d+ ms after the kill`, `server s\d leads now`,
		`two replicas run again`, `Nodes: 3 ready`, `the app has answered \d{2,} requests, `)
}

// Ctrl-C at any prompt leaves nothing behind.
func TestInterruptedDemonstration(t *testing.T) {
	tourtest.Build(t, "demo-ha", "../hello").Interrupted(t, []string{"1. Six machines", "2. Three servers"}, "s1$ cloudless server")
}
