package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// secret prints the digests of a variable and of a file, which must not be printed themselves, and waits. It prints them
// again after each SIGHUP. Without a wait it ends with the first.
func secret(variable, file string, wait bool) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGHUP)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	for {
		data, err := os.ReadFile(file)
		if err != nil {
			fmt.Println("file:", err)
		} else {
			fmt.Printf("file: %x\n", sha256.Sum256(data))
		}
		if value, found := os.LookupEnv(variable); found {
			fmt.Printf("variable: %x\n", sha256.Sum256([]byte(value)))
		} else {
			fmt.Println("variable: not set")
		}
		if !wait {
			return
		}
		select {
		case <-changed:
			fmt.Println("SIGHUP")
		case <-stop:
			return
		}
	}
}
