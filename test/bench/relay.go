package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"time"

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
