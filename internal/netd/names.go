package netd

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/cloudless/cloudless/internal/nodenet/learned"
	"github.com/cloudless/cloudless/internal/resolvconf"
	"github.com/cloudless/cloudless/internal/resolver"
)

// names is the resolver of the network process.
type names struct {
	process  *process
	resolver *resolver.Resolver

	mu sync.Mutex
	// failing are the addresses that the resolver cannot listen on, and why.
	failing map[netip.AddrPort]error
	learner *learned.Learner // nil until the agent says how its rules are called
	table   string
	// waiting are closed when all services of a namespace are known.
	waiting map[string]chan struct{}
}

func newNames(p *process) (*names, error) {
	n := &names{process: p, failing: map[netip.AddrPort]error{}, waiting: map[string]chan struct{}{}}
	var err error
	n.resolver, err = resolver.New(resolver.Options{Log: p.log, ResolvConf: resolvconf.Paths, Listening: n.listening, Fetch: n.fetch, Learn: n.learn})
	return n, err
}

// apply does what a request wants of the resolver.
func (n *names) apply(r request) error {
	if r.Names != nil {
		n.setTable(r.Names.Table)
	}
	if r.Clients != nil {
		n.resolver.SetClients(r.Clients, r.NameRules)
	}
	if r.Relearn {
		n.resolver.Relearn()
	}
	switch {
	case r.AllServices:
		n.resolver.Replace(r.Services)
	case len(r.Services)+len(r.RemovedServices) > 0:
		n.resolver.Update(r.Services, r.RemovedServices)
	}
	n.fetched(r.Fetched)
	if r.Names == nil {
		return nil
	}
	n.resolver.SetRanges(r.Names.Ranges)
	n.mu.Lock()
	maps.DeleteFunc(n.failing, func(address netip.AddrPort, _ error) bool { return !slices.Contains(r.Names.Listen, address) })
	n.mu.Unlock()
	return n.resolver.SetListen(r.Names.Listen)
}

// setTable says into which table addresses are learned.
func (n *names) setTable(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.table == name {
		return
	}
	if n.learner != nil {
		n.learner.Close()
	}
	n.learner, n.table = learned.New(name), name
}

// learn tells the rules of the node which addresses a replica has looked up.
func (n *names) learn(list []resolver.Learned) error {
	n.mu.Lock()
	learner := n.learner
	n.mu.Unlock()
	if learner == nil {
		return errNoAgent
	}
	all := make([]learned.Address, len(list))
	for i, one := range list {
		all[i] = learned.Address{Replica: one.Client, Address: one.Address, Rule: one.Rule, TTL: one.TTL, Again: one.Again}
	}
	return learner.Learn(all)
}

// listening tells the agent whether the resolver works.
func (n *names) listening(address netip.AddrPort, err error) {
	n.mu.Lock()
	before := n.failing[address]
	if err == nil {
		delete(n.failing, address)
	} else {
		n.failing[address] = err
	}
	n.mu.Unlock()
	if err == nil && before == nil || err != nil && before != nil && err.Error() == before.Error() {
		return
	}
	n.process.tellAgent(response{Resolver: n.problem()})
}

// problem says why replicas cannot look up names. It is empty if they can.
func (n *names) problem() *string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.failing) == 0 {
		return new("")
	}
	return new(errors.Join(slices.Collect(maps.Values(n.failing))...).Error())
}

var errNoAgent = errors.New("no agent is connected")

// fetch asks the agent for the services of a namespace, and waits until they are here.
func (n *names) fetch(ctx context.Context, name resolver.Name) error {
	n.mu.Lock()
	there := n.waiting[name.Namespace]
	if there == nil {
		there = make(chan struct{})
		n.waiting[name.Namespace] = there
	}
	n.mu.Unlock()
	if !n.process.tellAgent(response{Wanted: name.Namespace}) {
		n.giveUp(name.Namespace, there)
		return errNoAgent
	}
	select {
	case <-ctx.Done():
		n.giveUp(name.Namespace, there)
		return ctx.Err()
	case <-there:
		return nil
	}
}

// giveUp forgets that a lookup waits. Others that wait for the same namespace give up by themselves.
func (n *names) giveUp(namespace string, there chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waiting[namespace] == there {
		delete(n.waiting, namespace)
	}
}

func (n *names) fetched(namespaces []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, namespace := range namespaces {
		if there := n.waiting[namespace]; there != nil {
			close(there)
			delete(n.waiting, namespace)
		}
	}
}
