package netd

import (
	"context"
	"errors"
	"time"

	"github.com/cloudless/cloudless/internal/mesh"
)

// running is a mesh and the goroutine that runs it.
type running struct {
	mesh   *mesh.Mesh
	cancel context.CancelFunc
	ended  chan struct{}
}

// joinEvery is the time between two attempts to join the mesh.
const joinEvery = time.Second

// joined returns the mesh, or an error that says why this node is not in it.
func (p *process) joined() (*mesh.Mesh, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.running != nil:
		return p.running.mesh, nil
	case p.problem != "":
		return nil, errors.New(p.problem)
	}
	return nil, errors.New("the network is not set up yet")
}

func (p *process) setKey(b []byte) error {
	key, err := mesh.ParsePrivateKey(b)
	if err != nil {
		return err
	}
	p.mu.Lock()
	same := !p.key.IsZero() && p.key.Public() == key.Public()
	p.key = key
	current := p.running
	p.mu.Unlock()
	if same || current == nil {
		return nil
	}
	return current.mesh.SetKey(key)
}

// setUp joins the mesh, unless this node is in it with the same setup. keepJoining retries what fails.
func (p *process) setUp(ctx context.Context, s mesh.Setup) {
	p.joining.Lock()
	defer p.joining.Unlock()
	p.mu.Lock()
	same := p.running != nil && p.wanted.Equal(s)
	p.wanted = &s
	p.mu.Unlock()
	if !same {
		p.end()
		p.join(ctx)
	}
}

// keepJoining retries to join the mesh after a failure, until ctx ends.
func (p *process) keepJoining(ctx context.Context) {
	ticker := time.NewTicker(joinEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if p.joinLate(ctx) {
			p.tellAgent(response{Resend: true}) // an agent that connects later sends everything anyway
		}
	}
}

// joinLate joins the mesh if an earlier attempt has failed, and reports whether it did.
func (p *process) joinLate(ctx context.Context) bool {
	p.joining.Lock()
	defer p.joining.Unlock()
	p.mu.Lock()
	missing := p.wanted != nil && p.running == nil
	p.mu.Unlock()
	return missing && p.join(ctx)
}

// join opens the mesh and reports whether that succeeded. The agent hears of a new problem once. The caller holds joining.
func (p *process) join(ctx context.Context) bool {
	if ctx.Err() != nil { // the process ends, and its successor needs the interface
		return false
	}
	p.mu.Lock()
	setup, key := *p.wanted, p.key
	p.mu.Unlock()
	m, err := mesh.Open(mesh.Options{Setup: setup, Key: key, Dial: dialer(setup.Credentials), Announce: p.announce, Logger: p.log})
	if err != nil {
		p.failed(err.Error())
		return false
	}
	ctx, cancel := context.WithCancel(ctx)
	started := &running{mesh: m, cancel: cancel, ended: make(chan struct{})}
	p.mu.Lock()
	p.running, p.problem = started, ""
	p.mu.Unlock()
	go func() {
		defer close(started.ended)
		_ = m.Run(ctx) // it ends with ctx
	}()
	return true
}

func (p *process) failed(problem string) {
	p.mu.Lock()
	known := p.problem == problem
	p.problem = problem
	p.mu.Unlock()
	if !known {
		p.log.Error("this node cannot join the mesh; trying again", "error", problem)
		p.tellAgent(response{Failed: problem})
	}
}

// leave leaves the mesh.
func (p *process) leave() {
	p.joining.Lock()
	defer p.joining.Unlock()
	p.end()
}

// end leaves the mesh. The caller holds joining.
func (p *process) end() {
	p.mu.Lock()
	old := p.running
	p.running, p.announced = nil, nil
	p.mu.Unlock()
	if old == nil {
		return
	}
	old.cancel()
	<-old.ended
	if err := old.mesh.Close(); err != nil {
		p.log.Warn("the mesh did not end cleanly", "error", err)
	}
}

// announce tells the agent how this node can be reached.
func (p *process) announce(a mesh.Announcement) {
	p.mu.Lock()
	p.announced = &a
	p.mu.Unlock()
	p.tellAgent(response{Announced: &a}) // an agent that is gone hears it when it is back
}
