// Command talker is the program that the chaos test runs to check the network: it serves its own name, and calls a
// service by name all the time. It reports every second how many calls succeeded, how many failed, and who answered.
//
//	talker SERVICE:PORT
package main

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	callers  = 4
	pause    = 50 * time.Millisecond
	patience = 5 * time.Second
)

// tally is what happened in one second.
type tally struct {
	mu      sync.Mutex
	ok      int
	failed  int
	names   []string
	failure string
	process string
}

func main() {
	_, port, err := net.SplitHostPort(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	go serve(listener)
	t := tally{process: rand.Text()}
	for range callers {
		go func() {
			for ; ; time.Sleep(pause) {
				t.add(call(os.Args[1]))
			}
		}()
	}
	for range time.Tick(time.Second) {
		t.report()
	}
}

// serve tells every caller the name of this replica.
func serve(listener net.Listener) {
	name, _ := os.Hostname()
	for {
		conn, err := listener.Accept()
		if err != nil {
			continue
		}
		_, _ = fmt.Fprintln(conn, name)
		_ = conn.Close()
	}
}

// call returns the name of the replica that answered.
func call(address string) (string, error) {
	conn, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	name, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(name), err
}

func (t *tally) add(name string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.failed++
		t.failure = err.Error()
		return
	}
	t.ok++
	if !slices.Contains(t.names, name) {
		t.names = append(t.names, name)
	}
}

// report prints: the time in milliseconds, calls that succeeded, calls that failed, names, why the last one failed, and
// the name of this process.
func (t *tally) report() {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.Sort(t.names)
	fmt.Printf("%d %d %d %s %q %s\n", time.Now().UnixMilli(), t.ok, t.failed, "["+strings.Join(t.names, ",")+"]", t.failure, t.process)
	t.ok, t.failed, t.names, t.failure = 0, 0, nil, ""
}
