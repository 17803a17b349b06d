// Command ledger is the singleton of the chaos test: a program that must never run twice at a time. It writes a
// heartbeat every ten milliseconds: a name of this process, its fencing epoch, and the time since the boot of the
// machine in nanoseconds. It takes its time to stop, as a program that writes its state does.
package main

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pause  = 10 * time.Millisecond
	toStop = time.Second
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-stop
		time.Sleep(toStop)
		os.Exit(0)
	}()
	name, epoch := rand.Text(), os.Getenv("CLOUDLESS_EPOCH")
	for ; ; time.Sleep(pause) {
		var now unix.Timespec
		// All machines of the test have this clock in common, and no fault changes it.
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
			panic(err)
		}
		fmt.Printf("ledger %s %s %d\n", name, epoch, now.Nano())
	}
}
