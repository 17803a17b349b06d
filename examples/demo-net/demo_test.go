package main

import (
	"testing"

	"github.com/cloudless/cloudless/examples/internal/tour/tourtest"
)

func TestWholeDemonstration(t *testing.T) {
	tourtest.Build(t, "demo-net", "./shop").Whole(t,
		`\d+ × front-\S+ → api-\S+ → db-`, `api +10\.\d+\.\d+\.\d+ +80/tcp +2/2`, `api\.default\.cloudless\.internal`,
		`left +right +direct +203\.0\.113\.12:\d+`, `kill -9 \d+`, `left +right +relayed`, `the path is direct again`,
		`the app has answered \d{3,} requests; 0 failed`)
}

// Ctrl-C in the middle leaves nothing behind.
func TestInterruptedDemonstration(t *testing.T) {
	tourtest.Build(t, "demo-net", "./shop").Interrupted(t, []string{"1. Two networks", "2. One cluster"}, "left$ cloudless join")
}
