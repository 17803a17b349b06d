package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/resolver"
)

const (
	dnsRounds   = 5
	dnsRound    = 2 * time.Second
	dnsServices = 1000
	dnsClients  = 32
	dnsWindow   = 8  // queries of a client that wait for their answers
	dnsSteady   = 16 // clients that send at a given rate
	dnsTick     = time.Millisecond
	dnsPatience = time.Second
	dnsBuffer   = 1 << 20 // of the echo server, as large as the resolver's
)

// dnsRun is what is measured once for both figures of DNS.
type dnsRun struct{ rate, echoRate, p99, echoP99 sample }

func measureDNSRate(ctx context.Context, l *lab) (result, error) {
	run, err := l.measureDNS(ctx)
	if err != nil {
		return result{}, err
	}
	return result{
		value: run.rate.median(), floor: run.echoRate.median(),
		notes: []string{run.rate.spread("resolver"), run.echoRate.spread("echo")},
	}, nil
}

func measureDNSTail(ctx context.Context, l *lab) (result, error) {
	run, err := l.measureDNS(ctx)
	if err != nil {
		return result{}, err
	}
	return result{
		value: run.p99.median(), floor: run.echoP99.median(),
		notes: []string{fmt.Sprintf("at %.0f queries per second", run.rate.median()/2), run.p99.spread("resolver"), run.echoP99.spread("echo")},
	}, nil
}

// measureDNS asks the resolver and an echo server in turns, first as fast as they answer, then at half the rate of the
// resolver.
func (l *lab) measureDNS(ctx context.Context) (_ *dnsRun, err error) {
	if l.dns != nil {
		return l.dns, nil
	}
	own, stop, err := startResolver(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	echo, stopEcho, err := startEcho(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stopEcho()) }()
	run := &dnsRun{}
	for n := range dnsRounds + 1 { // the first round warms up
		for to, rates := range map[netip.AddrPort]*sample{own: &run.rate, echo: &run.echoRate} {
			rate, err := dnsRate(ctx, to)
			if err != nil {
				return nil, err
			}
			if n > 0 {
				*rates = append(*rates, rate)
			}
		}
	}
	for range dnsRounds {
		for to, tails := range map[netip.AddrPort]*sample{own: &run.p99, echo: &run.echoP99} {
			latencies, err := dnsLatencies(ctx, to, run.rate.median()/2)
			if err != nil {
				return nil, err
			}
			*tails = append(*tails, latencies.quantile(0.99))
		}
	}
	l.dns = run
	return run, nil
}

func dnsServiceName(i int) string { return fmt.Sprintf("service-%d.bench.%s.", i, resolver.Zone) }

func dnsClient(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 2, byte(i + 1)}) }

// startResolver serves the names of many services to many clients.
func startResolver(ctx context.Context) (netip.AddrPort, func() error, error) {
	ctx, cancel := context.WithCancel(ctx)
	listening, failed := make(chan netip.AddrPort, 1), make(chan error, 1)
	r, err := resolver.New(resolver.Options{
		Log: slog.New(slog.DiscardHandler),
		Listening: func(at netip.AddrPort, err error) {
			if err != nil {
				failed <- err
				return
			}
			listening <- at
		},
	})
	if err != nil {
		cancel()
		return netip.AddrPort{}, nil, err
	}
	var services []resolver.Service
	for i := range dnsServices {
		services = append(services, resolver.Service{
			Name: resolver.Name{Namespace: "bench", Name: fmt.Sprintf("service-%d", i)},
			V4:   netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}),
		})
	}
	r.Replace(services)
	clients := map[netip.Addr]resolver.Client{}
	for i := range dnsClients {
		clients[dnsClient(i)] = resolver.Client{Namespace: "bench"}
	}
	r.SetClients(clients, nil)
	if err := r.SetListen([]netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}); err != nil {
		cancel()
		return netip.AddrPort{}, nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stop := func() error { cancel(); return <-ended }
	select {
	case at := <-listening:
		return at, stop, nil
	case err := <-failed:
		return netip.AddrPort{}, nil, errors.Join(err, stop())
	}
}

// startEcho serves every question with itself.
func startEcho(ctx context.Context) (netip.AddrPort, func() error, error) {
	config := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
		var failed error
		err := socket.Control(func(fd uintptr) {
			failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, dnsBuffer)
		})
		return errors.Join(err, failed)
	}}
	packets, err := config.ListenPacket(ctx, "udp", "127.0.0.1:0")
	if err != nil {
		return netip.AddrPort{}, nil, err
	}
	started := make(chan struct{})
	server := &dns.Server{
		PacketConn: packets, NotifyStartedFunc: func() { close(started) },
		Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(new(dns.Msg).SetReply(q)) }),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.ActivateAndServe() }()
	select {
	case <-started:
		at := packets.LocalAddr().(*net.UDPAddr).AddrPort()
		return at, func() error { return errors.Join(server.Shutdown(), <-ended) }, nil
	case err := <-ended:
		return netip.AddrPort{}, nil, err
	}
}

// dnsConn is a client with its questions, which are encoded before.
type dnsConn struct {
	net.Conn
	questions [][]byte
	answer    []byte
}

func dialDNS(ctx context.Context, i int, to netip.AddrPort) (*dnsConn, error) {
	dialer := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(dnsClient(i), 0))}
	conn, err := dialer.DialContext(ctx, "udp", to.String())
	if err != nil {
		return nil, err
	}
	c := &dnsConn{Conn: conn, answer: make([]byte, dns.MinMsgSize)}
	for range 256 {
		wire, err := new(dns.Msg).SetQuestion(dnsServiceName(rand.IntN(dnsServices)), dns.TypeA).Pack()
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		c.questions = append(c.questions, wire)
	}
	return c, nil
}

// ask sends a question with an id.
func (c *dnsConn) ask(id uint16) error {
	question := c.questions[int(id)%len(c.questions)]
	binary.BigEndian.PutUint16(question, id)
	_, err := c.Write(question)
	return err
}

// read returns the id of an answer. A refused question is an error.
func (c *dnsConn) read() (uint16, error) {
	n, err := c.Read(c.answer)
	if err != nil {
		return 0, err
	}
	if n < 12 || c.answer[3]&0xF != dns.RcodeSuccess {
		return 0, fmt.Errorf("a query was answered with code %d", c.answer[3]&0xF)
	}
	return binary.BigEndian.Uint16(c.answer), nil
}

// dnsRate returns how many queries a second are answered to clients that always wait for some.
func dnsRate(ctx context.Context, to netip.AddrPort) (float64, error) {
	answered, errs := make([]int, dnsClients), make([]error, dnsClients)
	var clients sync.WaitGroup
	began := time.Now()
	for i := range dnsClients {
		clients.Go(func() { answered[i], errs[i] = askInWindows(ctx, i, to, began.Add(dnsRound)) })
	}
	clients.Wait()
	total := 0
	for _, n := range answered {
		total += n
	}
	return float64(total) / time.Since(began).Seconds(), errors.Join(errs...)
}

func askInWindows(ctx context.Context, i int, to netip.AddrPort, until time.Time) (answered int, err error) {
	c, err := dialDNS(ctx, i, to)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	for id := uint16(0); time.Now().Before(until) && ctx.Err() == nil; {
		if err := c.SetReadDeadline(time.Now().Add(dnsPatience)); err != nil {
			return 0, err
		}
		for range dnsWindow {
			if err := c.ask(id); err != nil {
				return 0, err
			}
			id++
		}
		for range dnsWindow {
			if _, err := c.read(); err != nil {
				return 0, fmt.Errorf("a query of client %d got no answer: %w", i, err)
			}
			answered++
		}
	}
	return answered, ctx.Err()
}

// dnsLatencies returns how long queries at a given rate took, in milliseconds.
func dnsLatencies(ctx context.Context, to netip.AddrPort, rate float64) (sample, error) {
	parts, errs := make([]sample, dnsSteady), make([]error, dnsSteady)
	var clients sync.WaitGroup
	for i := range dnsSteady {
		clients.Go(func() { parts[i], errs[i] = askAtRate(ctx, i, to, rate/dnsSteady) })
	}
	clients.Wait()
	var all sample
	for _, part := range parts {
		all = append(all, part...)
	}
	return all, errors.Join(errs...)
}

// askAtRate sends queries at a rate, whether or not earlier ones are answered.
func askAtRate(ctx context.Context, i int, to netip.AddrPort, rate float64) (latencies sample, err error) {
	c, err := dialDNS(ctx, i, to)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	total := int(rate * dnsRound.Seconds())
	if total == 0 || total > 1<<16 {
		return nil, fmt.Errorf("cannot measure with %d queries of one client", total)
	}
	began := time.Now()
	if err := c.SetReadDeadline(began.Add(dnsRound + dnsPatience)); err != nil {
		return nil, err
	}
	asked := make([]atomic.Int64, total) // when, since the beginning
	sent := make(chan error, 1)
	go func() { sent <- c.askSteadily(ctx, asked, began, rate) }()
	defer func() { err = errors.Join(err, <-sent) }()
	for range total {
		id, err := c.read()
		if errors.Is(err, os.ErrDeadlineExceeded) { // a lost query counts as one that took as long as a client waits
			latencies = append(latencies, dnsPatience.Seconds()*1000)
			continue
		}
		if err != nil {
			return nil, err
		}
		took := time.Since(began) - time.Duration(asked[id].Load())
		latencies = append(latencies, took.Seconds()*1000)
	}
	return latencies, nil
}

// askSteadily sends a few queries at every tick.
func (c *dnsConn) askSteadily(ctx context.Context, asked []atomic.Int64, began time.Time, rate float64) error {
	tick := time.NewTicker(dnsTick)
	defer tick.Stop()
	for n := 0; n < len(asked); {
		<-tick.C
		for due := min(len(asked), int(time.Since(began).Seconds()*rate)); n < due; n++ {
			asked[n].Store(int64(time.Since(began)))
			if err := errors.Join(ctx.Err(), c.ask(uint16(n))); err != nil {
				return err
			}
		}
	}
	return nil
}
