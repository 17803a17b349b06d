package app

import (
	"context"
	"sync"

	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/datadir"
)

// up makes this machine a server and a node: those that it is already, or else the
// first ones of a new cluster.
func up(ctx context.Context, o local.UpOptions) error {
	o.Reach.Name = o.Machine.Name
	s := &service{
		ServerOptions: local.ServerOptions{
			Process: o.Process, ConfigPath: o.ConfigPath, Context: o.Context,
			Reach: o.Reach,
		},
		node: &o.Machine,
		prepare: func(f *datadir.Folder, reach *local.Reach) error {
			listenAgain(f, reach)
			return f.TryPort(ctx, reach.APIAddr)
		},
	}
	return s.run(ctx)
}

// sayWhoIsMissing says that the server runs without one that leads, if that is so for
// long: others have joined it since, and do not run.
func (s *service) sayWhoIsMissing(ctx context.Context) {
	patience := leaderHope
	if len(s.plane.consensus.Servers()) == 0 {
		patience = stateHope
	}
	hope, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := s.plane.consensus.WaitLeader(hope); err != nil && ctx.Err() == nil {
		s.ready(s.waitsFor())
	}
}

// onlyOnce passes the first word on, for which somebody waits.
func onlyOnce(say func(string)) func(string) {
	var once sync.Once
	return func(message string) { once.Do(func() { say(message) }) }
}
