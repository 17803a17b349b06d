package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/server/membership"
)

// openFolder takes the folder of a role. If a parent process waits until the role is ready, it waits for another
// process that is starting or stopping.
func openFolder(ctx context.Context, process local.Process) (*datadir.Folder, error) {
	if process.Attended {
		return datadir.OpenWaiting(ctx, process.DataDir, process.Progress)
	}
	return datadir.Open(process.DataDir)
}

// openFolder takes the folder. A process whose node was removed makes way for one that makes this machine a node
// again.
func (s *service) openFolder(ctx context.Context) (*datadir.Folder, error) {
	for {
		f, err := openFolder(ctx, s.Process)
		held, ok := errors.AsType[*datadir.AlreadyRunningError](err)
		if !ok {
			return f, err
		}
		if err := s.mayLeaveRunning(held); err != nil {
			return nil, err
		}
		if !held.NodeRemoved || s.node == nil {
			return nil, held
		}
		if err := s.mayReplace(ctx, held); err != nil {
			return nil, err
		}
		s.Progress(fmt.Sprintf("stopping process %d, whose node was removed from the cluster", held.PID))
		wait := stopPause
		if managed(held.PID) {
			wait = managerPatience
		}
		if err := datadir.StopHolder(ctx, held, datadir.StopPatience); err != nil && !errors.Is(err, datadir.ErrChanging) {
			return nil, err
		}
		if err := pause(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// mayLeaveRunning refuses a running process that does not run the requested role.
func (s *service) mayLeaveRunning(held *datadir.AlreadyRunningError) error {
	if s.sameRole != nil {
		if err := s.sameRole(held); err != nil {
			return err
		}
	}
	if err := runsLess(held, true, s.node != nil); err != nil {
		return err
	}
	return runsElsewhere(held, s.APIAddr)
}

// mayReplace refuses to stop a process for one that could not start in its place.
func (s *service) mayReplace(ctx context.Context, held *datadir.AlreadyRunningError) error {
	f, err := datadir.View(held.DataDir)
	if err != nil {
		return err
	}
	if err := s.mayBegin(ctx, f); err != nil {
		return err
	}
	if s.ConfigPath == "" || !f.Founds() {
		return nil
	}
	return client.CheckConfig(s.ConfigPath)
}

// runsLess refuses a running process that lacks the requested server or node. A process of an older version does not
// record what it runs.
func runsLess(held *datadir.AlreadyRunningError, server, node bool) error {
	again := fmt.Sprintf("stop it with: cloudless down --data-dir %s, and run this command again", held.DataDir)
	switch {
	case !held.Server && !held.Node:
		return nil
	case server && !held.Server:
		if err := datadir.At(held.DataDir).CheckServer(); err != nil {
			return fmt.Errorf("process %d runs only a node: %w", held.PID, err)
		}
		return fmt.Errorf("process %d runs only the node of %s, without its server: %s", held.PID, held.DataDir, again)
	case node && !held.Node:
		return fmt.Errorf("process %d runs only the server of %s, without a node: %s", held.PID, held.DataDir, again)
	}
	return nil
}

// runsElsewhere refuses a port that differs from that of the running process, because it would be ignored.
func runsElsewhere(held *datadir.AlreadyRunningError, address string) error {
	_, wants, wantsErr := net.SplitHostPort(address)
	_, has, hasErr := net.SplitHostPort(held.Address)
	if wantsErr != nil || hasErr != nil || wants == has || wants == "0" {
		return nil
	}
	return fmt.Errorf("process %d runs on %s already, at %s: to have it at %s, stop it first with: cloudless down --data-dir %s",
		held.PID, held.DataDir, held.Address, address, held.DataDir)
}

// stopPause is the pause before the next look at a process that was stopped.
const stopPause = 20 * time.Millisecond

// managerPatience is longer than systemd takes to start a service again that ended.
const managerPatience = 5 * time.Second

// managed reports whether a process is a service, which its manager starts again: then that one makes the machine a
// node again, and two of them would fight for the folder.
func managed(pid int) bool {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(strings.Split(string(groups), "\n"), func(line string) bool { return strings.HasSuffix(line, ".service") })
}

// wayOut says what to do with the folder of a server that must not run on it any more. It names the folder, because the
// default folder of this machine may belong to another server, even to the original of a copy.
func wayOut(f *datadir.Folder, err error) error {
	switch {
	case errors.Is(err, membership.ErrRemoved):
		return command.ForGood(fmt.Errorf("%w: remove its data folder with: cloudless down --purge --data-dir %s, and join again with a new token", err, f.Path()))
	case errors.Is(err, membership.ErrDuplicate):
		return fmt.Errorf("%w: remove this copy with: cloudless down --purge --data-dir %s, and join as a new server, or stop the other one first if this machine is to take its place", err, f.Path())
	}
	return err
}
