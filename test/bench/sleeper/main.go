// Command sleeper is the benchmarks' program for containers: it does nothing until it is
// stopped. With an address as its argument it also accepts connections there, and closes
// them.
package main

import (
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	if len(os.Args) > 1 {
		listener, err := net.Listen("tcp", os.Args[1])
		if err != nil {
			log.Fatal(err)
		}
		go accept(listener)
	}
	<-stop
}

func accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		_ = conn.Close()
	}
}
