// Command printer is the program that the chaos test runs to check logs: it prints numbered lines on both streams until
// it is stopped. Each line names the process that printed it, and ends with a period if it is complete. The first lines
// come at once and nearly fill a file of a log; the others keep it growing, so that it is rotated.
package main

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const (
	atOnce = 4500 // lines on each stream
	pause  = 10 * time.Millisecond
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	attempt, padding := rand.Text(), strings.Repeat("x", 1000)
	for number := 0; ; number++ {
		fmt.Fprintf(os.Stdout, "%s out %d %s.\n", attempt, number, padding)
		fmt.Fprintf(os.Stderr, "%s err %d %s.\n", attempt, number, padding)
		if number < atOnce {
			continue
		}
		select {
		case <-stop:
			return
		case <-time.After(pause):
		}
	}
}
