// Command fleet joins thousands of simulated nodes to a cluster, from one process, to load its servers.
//
//	go run ./test/fleet --nodes 5000 --join 127.0.0.1:7700 --token-file token
//
// It reads commands from its input: kill, pause, return, quit. See --help.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/cloudless/cloudless/test/fleet/simulated"
)

const help = `Joins simulated nodes to a cluster. Each has a certificate, a TLS connection and a
session of its own, reports as often as the cluster asks for, and acknowledges
what it is assigned as running. They run nothing.

  cloudless token create --role node --uses 5000 > token
  go run ./test/fleet --nodes 5000 --join 127.0.0.1:7700 --token-file token

While it runs it takes commands on its input, one a line:

  kill 500      break the connections of 500 nodes without a word (10% is a tenth)
  pause 10%     make nodes silent, with their sessions open
  return        bring all of them back
  changes       say how long changes of endpoints took to arrive (with --follow)
  quit          end, as ctrl-C does

The nodes stay members; remove them with: cloudless node rm

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil && ctx.Err() == nil:
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

// settings are the command-line flags.
type settings struct {
	simulated.Options
	json   bool
	fanout fanout
}

func parse(args []string, stderr io.Writer) (*settings, error) {
	s := &settings{}
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, help)
		flags.PrintDefaults()
	}
	flags.IntVar(&s.Nodes, "nodes", 100, "how many `nodes` join")
	join := flags.String("join", "127.0.0.1:7700", "`addresses` of servers, separated by commas")
	tokenFile := flags.String("token-file", "", "`file` with a join token that may be used for every node")
	flags.StringVar(&s.Name, "name", "sim", "how the `names` of the nodes begin")
	sources := flags.String("sources", "", "`range` such as 127.7.0.0/16 ; every node connects from its own address in it")
	var labels labelChoices
	flags.Var(&labels, "label", "label of the nodes such as `zone=a,b,c`; every node gets one of the values; may be repeated")
	flags.DurationVar(&s.Delay, "delay", 0, "how long a replica takes to start and to stop")
	flags.DurationVar(&s.Heartbeat, "heartbeat", time.Second, "how often nodes report where the cluster does not say")
	flags.IntVar(&s.Handshakes, "handshakes", 64, "how many nodes connect at once")
	follow := flags.Int("follow", 0, "how many `namespaces` the nodes follow, one each: ns-0, ns-1 and so on")
	flags.BoolVar(&s.json, "json", false, "say everything as one JSON object a line")
	debug := flags.Bool("debug", false, "say why sessions end")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("unknown argument %q: see --help", flags.Arg(0))
	}
	s.Join, s.Labels = strings.Split(*join, ","), labels.of
	if *tokenFile == "" {
		return s, errors.New("name the file that has the join token with --token-file; make one with: cloudless token create --role node --uses N")
	}
	token, err := os.ReadFile(*tokenFile)
	if err != nil {
		return s, fmt.Errorf("read the join token: %w", err)
	}
	s.Token = strings.TrimSpace(string(token))
	if *debug {
		s.Logger = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if *follow > 0 {
		s.Follow, s.Network = func(i int) []string { return []string{fmt.Sprintf("ns-%d", i%*follow)} }, s.fanout.heard
	}
	if *sources != "" {
		s.Source, err = sourcesIn(*sources, s.Nodes)
	}
	return s, err
}

// sourcesIn gives every node an address of a range.
func sourcesIn(text string, nodes int) (func(int) netip.Addr, error) {
	all, err := netip.ParsePrefix(text)
	if err != nil || !all.Addr().Is4() {
		return nil, fmt.Errorf("--sources %q is not a range of IPv4 addresses such as 127.7.0.0/16", text)
	}
	if room := 1<<(32-all.Bits()) - 2; nodes > room {
		return nil, fmt.Errorf("--sources %s has %d addresses for %d nodes: take a larger range", text, room, nodes)
	}
	first := all.Masked().Addr().As4()
	base := uint32(first[0])<<24 | uint32(first[1])<<16 | uint32(first[2])<<8 | uint32(first[3])
	return func(i int) netip.Addr {
		a := base + 1 + uint32(i)
		return netip.AddrFrom4([4]byte{byte(a >> 24), byte(a >> 16), byte(a >> 8), byte(a)})
	}, nil
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	s, err := parse(args, stderr)
	if err != nil {
		return err
	}
	out := newVoice(stdout, s.json)
	before := memoryNow()
	began := time.Now()
	fleet, err := simulated.Enroll(ctx, s.Options, out.enrolling(s.Nodes))
	if err != nil {
		return err
	}
	out.enrolled(s.Nodes, time.Since(began))
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { _ = fleet.Run(ctx) })
	running.Go(func() { out.follow(ctx, fleet, before) })
	commands := readLines(ctx, stdin)
	for {
		select {
		case <-ctx.Done():
			return nil
		case line, open := <-commands:
			if !open { // the parent has closed our input
				commands = nil
				continue
			}
			quit, err := obey(fleet, &s.fanout, line, out)
			if err != nil {
				out.refused(err)
			}
			if quit {
				return nil
			}
		}
	}
}

// readLines passes on what is typed. A read from a terminal cannot be interrupted, so its goroutine ends with the
// process.
func readLines(ctx context.Context, from io.Reader) <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(from); scanner.Scan(); {
			select {
			case lines <- scanner.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	return lines
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
