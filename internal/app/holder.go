package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/local"
)

// holder describes the process that holds a data folder, for other processes
// that find the folder held.
type holder struct {
	PID     int    `json:"pid"`
	Address string `json:"address,omitempty"`
	// Server and Node are whether the process runs a server and a node. Both are
	// false until the process knows.
	Server bool `json:"server,omitempty"`
	Node   bool `json:"node,omitempty"`
	// Moving is whether it has not come up yet, or is about to let go.
	Moving bool `json:"moving,omitempty"`
	// NodeRemoved is whether it is a server whose node was removed from the cluster.
	NodeRemoved bool `json:"nodeRemoved,omitempty"`
}

// runs is the error for a process that finds the folder held.
func (h holder) runs(path string) *local.AlreadyRunningError {
	return &local.AlreadyRunningError{
		DataDir: path, PID: h.PID, Address: h.Address, Server: h.Server, Node: h.Node,
		Moving: h.Moving || h.PID <= 0, NodeRemoved: h.NodeRemoved,
	}
}

func readHolder(path string) holder {
	var who holder
	if data, err := os.ReadFile(lockPath(path)); err == nil {
		_ = json.Unmarshal(data, &who) // a holder that has not written yet is unknown
	}
	return who
}

// say changes what those are told who find the folder held.
func (f *folder) say(change func(*holder)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.said)
	data, err := json.Marshal(f.said)
	if err != nil {
		return err
	}
	if err := f.lock.Truncate(0); err != nil {
		return err
	}
	_, err = f.lock.WriteAt(data, 0)
	return err
}

// announce says where the process is reached that holds the folder.
func (f *folder) announce(address string) error {
	return f.say(func(h *holder) { h.Address = address })
}

// settle says that the process has come up, until ctx ends.
func (f *folder) settle(ctx context.Context) error {
	if err := f.say(func(h *holder) { h.Moving = false }); err != nil {
		return err
	}
	// Who comes while it ends waits, instead of being told that it runs.
	context.AfterFunc(ctx, func() { _ = f.say(func(h *holder) { h.Moving = true }) })
	return nil
}

// settles is ready, and says before that the process has come up.
func (f *folder) settles(ctx context.Context, ready func(string)) func(string) {
	return func(message string) {
		_ = f.settle(ctx) // without it the others wait for longer
		ready(message)
	}
}

// openFolder takes the folder. A process whose node was removed makes way for one
// that makes this machine a node again.
func (s *service) openFolder(ctx context.Context) (*folder, error) {
	for {
		f, err := openFolderFor(ctx, s.Process)
		held, ok := errors.AsType[*local.AlreadyRunningError](err)
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
		wait := movePause
		if managed(held.PID) {
			wait = managerPatience
		}
		if err := stopHolder(ctx, held, stopPatience); err != nil && !errors.Is(err, errElusive) {
			return nil, err
		}
		if err := pause(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// mayLeaveRunning refuses a running process that is not what was asked for.
func (s *service) mayLeaveRunning(held *local.AlreadyRunningError) error {
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
func (s *service) mayReplace(ctx context.Context, held *local.AlreadyRunningError) error {
	id, err := readFolderID(held.DataDir)
	if err != nil {
		return err
	}
	f := &folder{path: held.DataDir, folderID: id}
	if err := s.mayBegin(ctx, f); err != nil {
		return err
	}
	if s.ConfigPath == "" || !f.founds() {
		return nil
	}
	return client.CheckConfig(s.ConfigPath)
}

// runsLess refuses a process that runs less than the server and the node that
// were asked for. A process of an older version does not say what it runs.
func runsLess(held *local.AlreadyRunningError, server, node bool) error {
	again := fmt.Sprintf("stop it with: cloudless down --data-dir %s, and run this command again", held.DataDir)
	switch {
	case !held.Server && !held.Node:
		return nil
	case server && !held.Server:
		if err := (&folder{path: held.DataDir}).mayServe(); err != nil {
			return fmt.Errorf("process %d runs only a node: %w", held.PID, err)
		}
		return fmt.Errorf("process %d runs only the node of %s, without its server: %s", held.PID, held.DataDir, again)
	case node && !held.Node:
		return fmt.Errorf("process %d runs only the server of %s, without a node: %s", held.PID, held.DataDir, again)
	}
	return nil
}

// runsElsewhere refuses another port than that of a cloud that runs already, which
// would be ignored.
func runsElsewhere(held *local.AlreadyRunningError, wished string) error {
	_, wants, wantsErr := net.SplitHostPort(wished)
	_, has, hasErr := net.SplitHostPort(held.Address)
	if wantsErr != nil || hasErr != nil || wants == has || wants == "0" {
		return nil
	}
	return fmt.Errorf("process %d runs on %s already, at %s: to have it at %s, stop it first with: cloudless down --data-dir %s",
		held.PID, held.DataDir, held.Address, wished, held.DataDir)
}

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
