package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netns"

	"github.com/cloudless/cloudless/internal/sleep"
)

// blockRules drop the packets of the mesh between the machines.
const blockRules = `nft 'add table inet bench; add chain inet bench block { type filter hook input priority -300; }; add rule inet bench block meta l4proto udp drop'`

// setDirect allows or blocks direct paths between the machines of a pair.
func (p *pair) setDirect(ctx context.Context, allowed bool) error {
	script := blockRules
	if allowed {
		script = "nft delete table inet bench"
	}
	if out, err := p.in(ctx, 1, "sh", "-c", script).CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

// measureRelay compares the relay with a process that copies from one TLS connection to another, in turns.
func measureRelay(ctx context.Context, l *lab) (_ result, err error) {
	p, err := l.newPair(ctx, "relay")
	if err != nil {
		return result{}, err
	}
	defer p.close()
	if err := p.setDirect(ctx, false); err != nil {
		return result{}, err
	}
	if err := p.untilPath(ctx, "relayed"); err != nil {
		return result{}, err
	}
	relayed := &way{from: p.network[0], to: p.network[1], address: p.replica[1]}
	var copied sample
	for range overlayRounds {
		if err := relayed.transfer(ctx); err != nil {
			return result{}, err
		}
		speed, err := p.copyTLS(ctx)
		if err != nil {
			return result{}, err
		}
		copied = append(copied, speed)
	}
	return result{
		value: relayed.speeds.median(), floor: copied.median(),
		notes: []string{relayed.speeds.spread("through the relay in Gbit/s"), copied.spread("copied from TLS to TLS in Gbit/s"), "the relay runs on the first machine"},
	}, nil
}

// space is the network namespace of a machine.
func (m *machines) space(i int) (*yard, error) {
	handle, err := netns.GetFromName(m.spaces[i])
	return &yard{space: handle}, err
}

// copyTLS sends from the first machine to the second through a process on the first, over TLS both times, and returns
// Gbit/s.
func (p *pair) copyTLS(ctx context.Context) (_ float64, err error) {
	one, err := p.space(0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, one.close()) }()
	two, err := p.space(1)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, two.close()) }()
	config, err := selfSigned()
	if err != nil {
		return 0, err
	}
	var listener net.Listener
	err = one.inside(func() (err error) {
		listener, err = tls.Listen("tcp", p.address(0)+":0", config)
		return err
	})
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	connect := func(from *yard) (there, here net.Conn, err error) {
		accepted := make(chan net.Conn, 1)
		go func() {
			conn, _ := listener.Accept()
			accepted <- conn
		}()
		plain, err := from.dial(ctx, listener.Addr().String())
		if err != nil {
			return nil, nil, err
		}
		client := tls.Client(plain, &tls.Config{InsecureSkipVerify: true}) // a measurement, not a secret
		go func() { _ = client.HandshakeContext(ctx) }()
		here = <-accepted
		return client, here, here.(*tls.Conn).HandshakeContext(ctx)
	}
	sender, in, err := connect(one)
	if err != nil {
		return 0, err
	}
	receiver, out, err := connect(two)
	if err != nil {
		return 0, err
	}
	go func() {
		_, _ = io.Copy(out, in)
		_ = out.Close()
	}()
	began := time.Now()
	go func() {
		block := make([]byte, 1<<16)
		for time.Since(began) < overlayTime*time.Second {
			if _, err := sender.Write(block); err != nil {
				break
			}
		}
		_ = sender.Close()
	}()
	n, err := io.Copy(io.Discard, receiver)
	return float64(n) * 8 / time.Since(began).Seconds() / 1e9, err
}

func selfSigned() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, nil
}

const (
	failoverRounds = 5
	failoverPace   = 5 * time.Millisecond
	failoverLimit  = time.Minute
	// failoverSettle is longer than a new direct path and the relay are both used.
	failoverSettle = 10 * time.Second
)

// measureFailover cuts the direct path between two replicas that exchange packets.
func measureFailover(ctx context.Context, l *lab) (_ result, err error) {
	p, err := l.newPair(ctx, "failover")
	if err != nil {
		return result{}, err
	}
	defer p.close()
	var times sample
	for range failoverRounds {
		if err := p.untilPath(ctx, "direct"); err != nil {
			return result{}, err
		}
		if err := sleep.For(ctx, failoverSettle); err != nil {
			return result{}, err
		}
		took, err := p.failover(ctx)
		if err != nil {
			return result{}, err
		}
		times = append(times, took.Seconds())
		if err := p.setDirect(ctx, true); err != nil {
			return result{}, err
		}
	}
	return result{value: times.median(), notes: []string{times.spread("cut to the first answer in s"), fmt.Sprintf("a packet every %v", failoverPace)}}, nil
}

// failover cuts the direct path and waits for the next answer to a packet that was sent afterwards.
func (p *pair) failover(ctx context.Context) (time.Duration, error) {
	spaces := [2]*yard{}
	for i, path := range p.network {
		handle, err := netns.GetFromPath(path)
		if err != nil {
			return 0, err
		}
		spaces[i] = &yard{space: handle}
		defer handle.Close()
	}
	const port = 9
	echo, err := spaces[1].listenUDP(netip.AddrPortFrom(netip.MustParseAddr(p.replica[1]), port))
	if err != nil {
		return 0, err
	}
	defer echo.Close()
	go func() { // ends with the socket
		packet := make([]byte, 64)
		for {
			n, from, err := echo.ReadFromUDPAddrPort(packet)
			if err != nil {
				return
			}
			_, _ = echo.WriteToUDPAddrPort(packet[:n], from)
		}
	}()
	asking, err := spaces[0].listenUDP(netip.AddrPortFrom(netip.MustParseAddr(p.replica[0]), 0))
	if err != nil {
		return 0, err
	}
	defer asking.Close()
	sending, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		to := netip.AddrPortFrom(netip.MustParseAddr(p.replica[1]), port)
		for sending.Err() == nil {
			_, _ = asking.WriteToUDPAddrPort(fmt.Appendf(nil, "%d", time.Now().UnixNano()), to)
			time.Sleep(failoverPace)
		}
	}()
	if err := sleep.For(ctx, time.Second); err != nil { // packets flow
		return 0, err
	}
	if err := p.setDirect(ctx, false); err != nil {
		return 0, err
	}
	cut := time.Now()
	_ = asking.SetReadDeadline(cut.Add(failoverLimit))
	packet := make([]byte, 64)
	for {
		n, err := asking.Read(packet)
		if err != nil {
			return 0, fmt.Errorf("wait for an answer through the relay: %w", err)
		}
		var sent int64
		if _, err := fmt.Sscan(string(packet[:n]), &sent); err == nil && sent > cut.UnixNano() {
			return time.Since(cut), nil
		}
	}
}

func (y *yard) listenUDP(at netip.AddrPort) (conn *net.UDPConn, err error) {
	err = y.inside(func() (err error) {
		conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		return err
	})
	return conn, err
}

const (
	changeRounds = 5
	changePace   = time.Millisecond
	// changeSilence is how long nothing must arrive before the last packet is taken for the last one.
	changeSilence = 3 * time.Second
	changeLimit   = time.Minute
)

// measureCut removes a node whose agent is dead, so that it goes on sending.
func measureCut(ctx context.Context, l *lab) (_ result, err error) {
	p, err := l.newPair(ctx, "cut")
	if err != nil {
		return result{}, err
	}
	defer p.close()
	var times sample
	for round := range changeRounds {
		if round > 0 {
			if err := p.rejoin(ctx); err != nil {
				return result{}, err
			}
		}
		if err := p.untilPath(ctx, "direct"); err != nil {
			return result{}, err
		}
		took, err := p.cut(ctx)
		if err != nil {
			return result{}, err
		}
		times = append(times, took)
	}
	return result{value: times.median(), notes: []string{times.spread("removal to the last packet in ms"), fmt.Sprintf("a packet every %v", changePace)}}, nil
}

// cut kills the agent of the second machine, removes its node, and returns after how many milliseconds its last packet
// arrived.
func (p *pair) cut(ctx context.Context) (float64, error) {
	var holder struct{ PID int }
	data, err := os.ReadFile(filepath.Join(p.data[1], "lock"))
	if err == nil {
		err = json.Unmarshal(data, &holder)
	}
	if err == nil {
		err = syscall.Kill(holder.PID, syscall.SIGKILL)
	}
	if err != nil {
		return 0, fmt.Errorf("kill the second agent: %w", err)
	}
	to := netip.AddrPortFrom(netip.MustParseAddr(p.replica[0]), 9)
	receiving, closeReceiver, err := udpIn(p.network[0], to)
	if err != nil {
		return 0, err
	}
	defer closeReceiver()
	sending, closeSender, err := udpIn(p.network[1], netip.AddrPortFrom(netip.MustParseAddr(p.replica[1]), 0))
	if err != nil {
		return 0, err
	}
	defer closeSender()
	go func() { // ends with the socket
		for {
			if _, err := sending.WriteToUDPAddrPort([]byte("packet"), to); errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(changePace)
		}
	}()
	var last atomic.Int64
	go func() { // ends with the socket
		for {
			if _, err := receiving.Read(make([]byte, 64)); err != nil {
				return
			}
			last.Store(time.Now().UnixNano())
		}
	}()
	if err := sleep.For(ctx, time.Second); err != nil {
		return 0, err
	}
	if last.Load() == 0 {
		return 0, errors.New("no packet arrives before the removal")
	}
	began := time.Now()
	if _, err := p.cloudless(ctx, 0, "node", "rm", "two", "--force"); err != nil {
		return 0, err
	}
	for time.Since(time.Unix(0, last.Load())) < changeSilence {
		if time.Since(began) > changeLimit {
			return 0, errors.New("a removed node is not cut off")
		}
		if err := sleep.For(ctx, 10*time.Millisecond); err != nil {
			return 0, err
		}
	}
	return max(0, float64(last.Load()-began.UnixNano())/1e6), nil
}

// rejoin makes the second machine a node again, with a replica.
func (p *pair) rejoin(ctx context.Context) error {
	token := filepath.Join(p.lab.dir, "rejoin.token")
	secret, err := p.cloudless(ctx, 0, "token", "create", "--role", "node")
	if err == nil {
		err = os.WriteFile(token, []byte(secret), 0o600)
	}
	for _, step := range []struct {
		on    int
		words []string
	}{
		{0, []string{"workload", "rm", "at-two"}},
		{1, []string{"down", "--purge", "--data-dir", p.data[1]}},
		{1, []string{"join", p.address(0) + ":7700", "--detach", "--token-file", token, "--data-dir", p.data[1], "--name", "two", "--label", "at=two"}},
	} {
		if err == nil {
			_, err = p.cloudless(ctx, step.on, step.words...)
		}
	}
	if err == nil {
		err = p.startReplica(ctx, 1, "two")
	}
	return err
}

// udpIn opens a socket in a network namespace.
func udpIn(path string, at netip.AddrPort) (*net.UDPConn, func(), error) {
	handle, err := netns.GetFromPath(path)
	if err != nil {
		return nil, nil, err
	}
	conn, err := (&yard{space: handle}).listenUDP(at)
	if err != nil {
		return nil, nil, errors.Join(err, handle.Close())
	}
	return conn, func() { _, _ = conn.Close(), handle.Close() }, nil
}

// changedService is headless, so that its name leads to its endpoints.
const changedService = `kind: Service
metadata: {name: changed}
spec:
  headless: true
  ports: [{name: http, port: 80}]
  external: [{name: first, addresses: [192.0.2.1]}]
`

// measureDNSChange registers endpoints with a service, and asks the resolver of a node without a server for them.
func measureDNSChange(ctx context.Context, l *lab) (_ result, err error) {
	p, err := l.newPair(ctx, "dnschange")
	if err != nil {
		return result{}, err
	}
	defer p.close()
	file := filepath.Join(l.dir, "changed.yaml")
	if err := os.WriteFile(file, []byte(changedService), 0o600); err != nil {
		return result{}, err
	}
	if _, err := p.cloudless(ctx, 0, "apply", "-f", file); err != nil {
		return result{}, err
	}
	own := netip.MustParseAddr(p.replica[1]).As4()
	own[3] = 1 // the bridge has the first address of the node
	conn, closeConn, err := udpIn(p.network[1], netip.AddrPortFrom(netip.MustParseAddr(p.replica[1]), 0))
	if err != nil {
		return result{}, err
	}
	defer closeConn()
	resolver := netip.AddrPortFrom(netip.AddrFrom4(own), 53)
	if _, err := untilAnswered(ctx, conn, resolver, "192.0.2.1"); err != nil {
		return result{}, err
	}
	var times sample
	for round := range changeRounds {
		took, err := p.registered(ctx, conn, resolver, fmt.Sprintf("e%d", round), fmt.Sprintf("192.0.2.%d", 10+round))
		if err != nil {
			return result{}, err
		}
		times = append(times, took)
	}
	return result{value: times.median(), notes: []string{times.spread("change to answer in ms"), fmt.Sprintf("a lookup every %v", changePace)}}, nil
}

// registered adds an endpoint, and returns after how many milliseconds the resolver answered with it. The time of the
// change is that of the server, which has the same clock.
func (p *pair) registered(ctx context.Context, conn *net.UDPConn, resolver netip.AddrPort, name, address string) (float64, error) {
	type found struct {
		at  time.Time
		err error
	}
	seen := make(chan found, 1)
	asking, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		at, err := untilAnswered(asking, conn, resolver, address)
		seen <- found{at, err}
	}()
	if _, err := p.cloudless(ctx, 0, "endpoint", "register", "changed", name, address); err != nil {
		stop()
		<-seen
		return 0, err
	}
	answered := <-seen
	if answered.err != nil {
		return 0, answered.err
	}
	out, err := p.cloudless(ctx, 0, "endpoint", "ls", "changed", "-o", "json")
	if err != nil {
		return 0, err
	}
	var list struct {
		Items []struct {
			Metadata struct {
				Name       string
				CreateTime time.Time
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return 0, err
	}
	for _, e := range list.Items {
		if e.Metadata.Name == name {
			return float64(answered.at.Sub(e.Metadata.CreateTime)) / 1e6, nil
		}
	}
	return 0, fmt.Errorf("endpoint %s is not listed: %s", name, out)
}

// untilAnswered asks a resolver again and again until an address is among its answers.
func untilAnswered(ctx context.Context, conn *net.UDPConn, resolver netip.AddrPort, address string) (time.Time, error) {
	question := new(dns.Msg).SetQuestion("changed.default.cloudless.internal.", dns.TypeA)
	packed, err := question.Pack()
	if err != nil {
		return time.Time{}, err
	}
	buffer := make([]byte, 4096)
	for began := time.Now(); time.Since(began) < changeLimit; {
		if _, err := conn.WriteToUDPAddrPort(packed, resolver); err != nil {
			return time.Time{}, err
		}
		_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		n, err := conn.Read(buffer)
		var answer dns.Msg
		if err == nil && answer.Unpack(buffer[:n]) == nil {
			for _, record := range answer.Answer {
				if strings.HasSuffix(record.String(), "\t"+address) {
					return time.Now(), nil
				}
			}
		}
		if err := sleep.For(ctx, changePace); err != nil {
			return time.Time{}, err
		}
	}
	return time.Time{}, fmt.Errorf("%s is not answered within %v", address, changeLimit)
}
