package discover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// AnnounceOptions say what a server announces.
type AnnounceOptions struct {
	// Name identifies the server, for example its uid; it must be one DNS label.
	Name string
	// Cluster is the fingerprint of the cluster's authority.
	Cluster string
	// Authorities, if it is set, replaces Cluster by the fingerprints of all authorities that are trusted now.
	Authorities func() []string
	// Listen is where the server listens. If that is one address, only its network gets answers; if it is all of them,
	// each network gets the address on it.
	Listen string
	// Advertise replaces these addresses, if it is set.
	Advertise string
	Logger    *slog.Logger
}

// relook is how often to look for new interfaces: a machine may get them long after its start, and clients repeat their
// question.
const relook = 5 * time.Second

// Announce answers searches for servers until ctx ends, which is no error. A server that listens only on loopback is
// not announced.
func Announce(ctx context.Context, o AnnounceOptions) error {
	a := &announcer{AnnounceOptions: o}
	host, port, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return fmt.Errorf("announce %s: %w", o.Listen, err)
	}
	a.port = port
	if a.only, err = netip.ParseAddr(host); err == nil && a.only.IsUnspecified() {
		a.only = netip.Addr{}
	}
	if a.only.IsLoopback() || host == "localhost" {
		return nil
	}
	var failures []error
	for _, f := range families {
		s, err := f.open(ctx, true)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		a.sockets = append(a.sockets, s)
	}
	if len(a.sockets) == 0 {
		return fmt.Errorf("announce this server on its network: %w", errors.Join(failures...))
	}
	return a.run(ctx)
}

type announcer struct {
	AnnounceOptions
	only    netip.Addr // unset for all
	port    string
	sockets []*socket
}

func (a *announcer) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range a.sockets {
		g.Go(func() error { return a.serve(ctx, s) })
	}
	g.Go(func() error {
		defer func() {
			for _, s := range a.sockets {
				_ = s.conn.Close()
			}
		}()
		ticker := time.NewTicker(relook)
		defer ticker.Stop()
		for {
			a.joinAll()
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
			}
		}
	})
	return g.Wait()
}

func (a *announcer) joinAll() {
	all, err := links()
	if err != nil {
		a.Logger.Warn("look for networks to announce this server on", "error", err)
		return
	}
	for _, link := range all {
		if !a.on(link) {
			continue
		}
		for _, s := range a.sockets {
			if _, has := s.carries(link); has {
				s.join(link)
			}
		}
	}
}

// on reports whether the server is announced on an interface.
func (a *announcer) on(link net.Interface) bool {
	if !a.only.IsValid() {
		return true
	}
	all, err := link.Addrs()
	if err != nil {
		return false
	}
	for _, address := range all {
		if n, ok := address.(*net.IPNet); ok && n.IP.Equal(a.only.AsSlice()) {
			return true
		}
	}
	return false
}

func (a *announcer) serve(ctx context.Context, s *socket) error {
	buffer := make([]byte, 9000) // the largest message that RFC 6762 allows
	for {
		n, index, from, err := s.receive(buffer)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("listen for machines that look for servers: %w", err)
		}
		id, ok := asks(buffer[:n])
		if !ok {
			continue
		}
		if err := a.reply(s, index, from, id); err != nil {
			a.Logger.Debug("answer who looks for servers", "error", err)
		}
	}
}

// reply sends the server's address: to all machines on the network if the asker takes part in multicast DNS, or else only
// to the asker.
func (a *announcer) reply(s *socket, index int, from net.Addr, id uint16) error {
	link, err := net.InterfaceByIndex(index)
	if err != nil {
		return err
	}
	if !a.on(*link) {
		return nil
	}
	address := a.address(s.family, *link)
	if address == "" {
		return nil
	}
	asker, ok := from.(*net.UDPAddr)
	if !ok {
		return nil
	}
	legacy := asker.Port != port
	cluster := a.Cluster
	if a.Authorities != nil {
		cluster = strings.Join(a.Authorities(), ",")
	}
	message, err := answer(id, legacy, a.Name, Found{Address: address, Cluster: cluster})
	if err != nil {
		return err
	}
	if legacy {
		return s.send(message, index, from)
	}
	return s.send(message, index, s.multicast())
}

// address is where machines on an interface reach the server; empty if they cannot.
func (a *announcer) address(f family, link net.Interface) string {
	switch {
	case a.Advertise != "":
		return a.Advertise
	case a.only.IsValid():
		return a.Listen
	}
	if own, _ := f.carries(link); own.IsValid() {
		return net.JoinHostPort(own.String(), a.port)
	}
	return ""
}
