// Command probe is the program that end-to-end tests run inside containers. Each
// subcommand shows one thing that a container sees or does.
package main

import (
	"bufio"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) < 2 {
		fail("usage: probe count|sleep|exit|eat|limits|size|signal|kill|cat|status|links|both|burn|work|long|owner|secret|env|touch|remove|health|alive|file|serve|ask|digest|send ...")
	}
	args := os.Args[2:]
	switch os.Args[1] {
	case "count":
		count(args)
	case "sleep":
		sleep()
	case "exit":
		os.Exit(number(args, 0))
	case "eat":
		eat(number(args, 0))
	case "limits":
		limits()
	case "size":
		size()
	case "signal":
		onSignal()
	case "kill":
		if err := syscall.Kill(number(args, 1), syscall.SIGTERM); err != nil {
			fail(err.Error())
		}
	case "cat":
		cat()
	case "status":
		show("/proc/self/status")
	case "links":
		show("/proc/net/dev")
	case "both":
		fmt.Println("to stdout")
		fmt.Fprintln(os.Stderr, "to stderr")
		sleep()
	case "burn":
		burn()
	case "work":
		work()
	case "env":
		fmt.Println(strings.Join(os.Environ(), "\n"))
	case "file":
		show(args[0])
	case "serve":
		serve(args[0])
	case "dns":
		serveNames(args[0], args[1:])
	case "ask":
		ask(args[0], args[1])
	case "digest":
		digest(args[0])
	case "send":
		send(args[0])
	case "health":
		health(args[0])
	case "alive":
		alive()
	case "remove":
		if err := os.Remove(args[0]); err != nil {
			fail(err.Error())
		}
	case "touch":
		if err := os.WriteFile(args[0], nil, 0o600); err != nil {
			fail(err.Error())
		}
	case "long":
		long(number(args, 1))
		if len(args) < 2 {
			sleep()
		}
	case "owner":
		owner(args[0])
	case "secret":
		secret(args[0], args[1], len(args) > 2)
	default:
		fail("unknown verb " + os.Args[1])
	}
}

func fail(why string) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(2)
}

func number(args []string, fallback int) int {
	if len(args) == 0 {
		return fallback
	}
	n, err := strconv.Atoi(args[0])
	if err != nil {
		fail(err.Error())
	}
	return n
}

// count prints numbered lines at an interval in milliseconds, until SIGTERM.
func count(args []string) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	tick := time.NewTicker(time.Duration(number(args, 10)) * time.Millisecond)
	out := bufio.NewWriter(os.Stdout)
	for i := 0; ; i++ {
		fmt.Fprintf(out, "line %d\n", i)
		_ = out.Flush()
		select {
		case <-stop:
			fmt.Println("stopped")
			return
		case <-tick.C:
		}
	}
}

func sleep() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	<-stop
}

// eat allocates so many MiB, or memory until it is killed if the limit is 0.
func eat(limit int) {
	var kept [][]byte
	for limit == 0 || len(kept) < limit {
		block := make([]byte, 1<<20)
		for i := range block {
			block[i] = byte(i)
		}
		kept = append(kept, block)
		fmt.Println("MiB", len(kept))
	}
	sleep()
	runtime.KeepAlive(kept)
}

// burn uses a CPU until SIGTERM.
func burn() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	for len(stop) == 0 {
		runtime.Gosched()
	}
}

// limits prints the container's limits, from the cgroup files that it sees.
func limits() {
	for _, file := range []string{
		"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us",
		"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/cpu.max",
	} {
		if data, err := os.ReadFile(file); err == nil {
			fmt.Printf("%s %s", file, data)
		}
	}
}

// size prints the size of the terminal now and after every change.
func size() {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	for {
		ws, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ)
		if err != nil {
			fail(err.Error())
		}
		fmt.Printf("size %dx%d\n", ws.Col, ws.Row)
		<-changed
	}
}

// onSignal exits with 100 plus the number of the first signal.
func onSignal() {
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1)
	fmt.Println("waiting")
	s := <-got
	fmt.Println("got", s)
	os.Exit(100 + int(s.(syscall.Signal)))
}

func cat() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		fmt.Println("read", in.Text())
	}
	fmt.Println("end of input")
}

// long prints one line of the given size in MiB, and a short one.
func long(mebibytes int) {
	block := []byte(strings.Repeat("x", 1<<20))
	for range mebibytes {
		_, _ = os.Stdout.Write(block)
	}
	fmt.Println()
	fmt.Println("after the line")
}

// owner prints the owner and the mode of a file.
func owner(file string) {
	info, err := os.Lstat(file)
	if err != nil {
		fail(err.Error())
	}
	st := info.Sys().(*syscall.Stat_t)
	fmt.Printf("%d:%d %s\n", st.Uid, st.Gid, info.Mode())
}

func show(file string) {
	data, err := os.ReadFile(file)
	if err != nil {
		fail(err.Error())
	}
	_, _ = os.Stdout.Write(data)
}
