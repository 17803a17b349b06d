package netd

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"os"
	"strings"
	"time"

	"github.com/cloudless/cloudless/internal/deadpeer"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/mesh"
	"github.com/cloudless/cloudless/internal/mesh/relay"
)

// Will is what the process tells a server after the agent has ended without stopping its replicas, again and again
// until an agent is back. The process does not know what it means.
type Will struct {
	// Path is that of the HTTP request. Running is its JSON while any of the processes runs, and Ended when none does.
	Path, Running, Ended string
	// Processes are the pids of the replicas. If there are none, there is nothing to tell.
	Processes []int
}

const (
	// willCheck is how often the process looks whether replicas still run while there is no agent.
	willCheck = 100 * time.Millisecond
	// willEvery is how often it repeats itself. A server that has just begun to lead knows nothing yet.
	willEvery = time.Second
	// willPatience is how long one server may take to answer.
	willPatience = time.Second
)

// knownWill is a will with the start times of its processes, because pids are used again.
type knownWill struct {
	Will
	started map[int]string
}

func (p *process) setWill(w Will) {
	known := &knownWill{Will: w, started: map[int]string{}}
	for _, pid := range w.Processes {
		known.started[pid] = startTime(pid)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.will = known
}

// running reports whether any of the processes still runs.
func (w *knownWill) running() bool {
	for pid, started := range w.started {
		if started != "" && startTime(pid) == started {
			return true
		}
	}
	return false
}

// startTime identifies a process among all that ever have the same pid. It is empty if the process has ended.
func startTime(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // a program's name may contain spaces
	if len(fields) < 20 || fields[0][0] == 'Z' || fields[0][0] == 'X' {
		return ""
	}
	return string(fields[19])
}

// executeWills tells a server of every agent that is lost, until ctx ends.
func (p *process) executeWills(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.lost:
		}
		p.executeWill(ctx)
	}
}

// executeWill repeats what the agent's will says until there is an agent again.
func (p *process) executeWill(ctx context.Context) {
	ticker := time.NewTicker(willCheck)
	defer ticker.Stop()
	ran, said := true, time.Now()
	for {
		w, setup, servers := p.bequest()
		if w == nil {
			return
		}
		if running := w.running(); running != ran || time.Since(said) >= willEvery {
			body := w.Ended
			if running {
				body = w.Running
			}
			ran, said = running, time.Now()
			if err := tellAny(ctx, setup.Credentials, servers, w.Path, body); err != nil {
				p.log.Warn("no server hears that the agent of this node is gone; trying again", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// bequest returns what is to be told and to which servers. The will is nil if there is an agent, or nothing to tell.
func (p *process) bequest() (*knownWill, mesh.Setup, []mesh.Relay) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.agent != nil || p.will == nil || len(p.will.Processes) == 0 || p.wanted == nil {
		return nil, mesh.Setup{}, nil
	}
	return p.will, *p.wanted, p.relays
}

// tellAny sends a request to the first server that answers.
func tellAny(ctx context.Context, credentials string, servers []mesh.Relay, path, body string) error {
	failed := errors.New("this node knows no server")
	for _, s := range servers {
		err := tell(ctx, credentials, s.Address, path, body)
		if err == nil {
			return nil
		}
		failed = fmt.Errorf("server %s: %w", s.Address, err)
	}
	return failed
}

// tell sends one HTTP request. This is all of HTTP that it needs: package net/http would double the size of the program.
func tell(ctx context.Context, credentials, server, path, body string) error {
	ctx, cancel := context.WithTimeout(ctx, willPatience)
	defer cancel()
	conn, err := dial(ctx, credentials, server, "http/1.1")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		path, server, len(body), body); err != nil {
		return err
	}
	status, err := textproto.NewReader(bufio.NewReader(conn)).ReadLine()
	if err != nil {
		return err
	}
	if words := strings.Fields(status); len(words) < 2 || words[1] != "200" {
		return fmt.Errorf("it answers %.80q", status)
	}
	return nil
}

// dial connects to a server by mutual TLS. It reads the credentials each time: they are renewed now and then.
func dial(ctx context.Context, credentials, server, protocol string) (net.Conn, error) {
	mine, err := identity.LoadCredentials(credentials)
	if err != nil {
		return nil, err
	}
	config := identity.ClientTLS(mine.Trust(), mine.Certificate)
	config.NextProtos = []string{protocol}
	return (&tls.Dialer{NetDialer: deadpeer.Dialer(), Config: config}).DialContext(ctx, "tcp", server)
}

// dialer connects to relays.
func dialer(credentials string) func(context.Context, mesh.Relay) (net.Conn, error) {
	return func(ctx context.Context, r mesh.Relay) (net.Conn, error) {
		return dial(ctx, credentials, r.Address, relay.Protocol)
	}
}
