package main

import (
	"fmt"
	"net/http"
	"os"
	"time"
)

// The files that say how the program feels. Tests make and remove them in the running container.
const (
	fileStarted = "/started"
	fileBusy    = "/busy"
	fileDead    = "/dead"
)

// health listens once it has started, and answers HTTP probes.
func health(port string) {
	for !exists(fileStarted) {
		time.Sleep(10 * time.Millisecond)
	}
	answer := func(path string, well func() bool, otherwise string) {
		http.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			if !well() {
				http.Error(w, otherwise, http.StatusServiceUnavailable)
			}
		})
	}
	answer("/started", func() bool { return true }, "")
	answer("/ready", func() bool { return !exists(fileBusy) }, "the queue is full")
	fmt.Println("serving")
	fail(http.ListenAndServe(":"+port, nil).Error())
}

// work keeps one CPU busy while there is a file that says so.
func work() {
	fmt.Println("waiting for work")
	for {
		if !exists(fileBusy) {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// alive fails if the program is dead.
func alive() {
	if exists(fileDead) {
		fail("deadlock")
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
