package app

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/spec"
)

// How long a server waits for a leader before it reports that it runs without one: a returning server, and one that has
// just joined and is about to receive the state.
const (
	leaderHope = 15 * time.Second
	stateHope  = time.Minute
)

// reportServer reports that this server, which has no node beside it, is ready.
func (s *service) reportServer(ctx context.Context) error {
	doing, patience := "waiting for a server that leads", leaderHope
	if len(s.plane.consensus.Servers()) == 0 {
		doing, patience = "waiting for the cluster's state", stateHope
	}
	s.Progress(doing)
	hope, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := s.plane.consensus.WaitLeader(hope); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		s.ready(s.waitsFor())
		return nil
	}
	said, err := s.writeContext(ctx)
	if err != nil {
		return err
	}
	if said == "" {
		s.ready(fmt.Sprintf("server is ready at %s; after a restart of the machine, run: %s", s.plane.server.Address(), s.startAgain()))
		return nil
	}
	s.ready(fmt.Sprintf("server is ready at %s\n%s\nadd a machine with: cloudless token create --role node", s.plane.server.Address(), said))
	return nil
}

// waitsFor says what a server without a leader waits for.
func (s *service) waitsFor() string {
	at := s.plane.server.Address()
	again := fmt.Sprintf("cloudless %s --data-dir %s --api-addr %s", s.command(), s.folder.Path(), at)
	if len(s.plane.consensus.Servers()) > 0 {
		return fmt.Sprintf("server runs at %s and waits for the others: more than half of the voting servers must run; they are looked for at %s: "+
			"where all are elsewhere now, stop this one and name where another one is: %s --peer ADDRESS",
			at, strings.Join(s.plane.peers.Addresses(), ", "), again)
	}
	// It has joined, but never received anything.
	return fmt.Sprintf("server runs at %s, but is not sent the cluster's state: the server that leads must run and reach this one at %s; "+
		"open the network to it, or stop it and name another address: %s --advertise ADDRESS",
		at, s.plane.server.Membership().Advertised(), again)
}

// command is the command that starts this process again.
func (s *service) command() string {
	if s.node != nil {
		return "up"
	}
	return "server"
}

// startAgain is the command that starts this process as it runs now.
func (s *service) startAgain() string {
	command := fmt.Sprintf("cloudless %s --data-dir %s --api-addr %s", s.command(), s.folder.Path(), s.plane.server.Address())
	if s.Advertise != "" {
		command += " --advertise " + s.Advertise
	}
	if s.folder.Zone != "" {
		command += " --zone " + s.folder.Zone
	}
	if !s.Announce {
		command += " --announce=false"
	}
	if s.folder.ElectionTimeout != 0 {
		command += " --election-timeout " + s.folder.ElectionTimeout.String()
	}
	return command
}

// contextAddresses are the addresses at which a client on this machine reaches the servers, this one first.
func (p *controlPlane) contextAddresses() []string {
	own := spec.LoopbackAddress(p.server.Address())
	rest := slices.DeleteFunc(p.server.Membership().Addresses(), func(address string) bool {
		return address == own || address == p.server.Membership().Advertised()
	})
	return append([]string{own}, rest...)
}

// reportNoLeader reports that the server runs without a leader, if that lasts: servers that joined it do not run.
func (s *service) reportNoLeader(ctx context.Context) error {
	patience := leaderHope
	if len(s.plane.consensus.Servers()) == 0 {
		patience = stateHope
	}
	hope, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := s.plane.consensus.WaitLeader(hope); err != nil && ctx.Err() == nil {
		s.ready(s.waitsFor())
	}
	return nil
}

// onlyOnce passes on the first message only.
func onlyOnce(say func(string)) func(string) {
	var once sync.Once
	return func(message string) { once.Do(func() { say(message) }) }
}
