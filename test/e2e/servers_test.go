package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"
)

// killLeader sends SIGKILL to the leader and waits for its end. It sets LEADER,
// LEADER_DATA and LEADER_ADDR:
//
//	kill9leader
func killLeader(ts *testscript.TestScript, _ bool, _ []string) {
	all := servers(ts)
	for _, server := range all {
		if !server.Leader {
			continue
		}
		locks, err := filepath.Glob(filepath.Join(ts.Getenv("WORK"), "*", "lock"))
		ts.Check(err)
		for _, lock := range locks {
			var holder struct {
				PID     int
				Address string
			}
			data, err := os.ReadFile(lock)
			ts.Check(err)
			if json.Unmarshal(data, &holder) != nil || holder.Address != server.Address {
				continue
			}
			ts.Check(syscall.Kill(holder.PID, syscall.SIGKILL))
			waitGone(ts, holder.PID)
			ts.Setenv("LEADER", server.Name)
			ts.Setenv("LEADER_DATA", filepath.Dir(lock))
			ts.Setenv("LEADER_ADDR", server.Address)
			return
		}
	}
	ts.Fatalf("no server of this script is the leader: %v", all)
}

// shownServer is a server as the API returns it.
type shownServer struct {
	Name, Address string
	Leader        bool
}

func servers(ts *testscript.TestScript) []shownServer {
	out, err := command(ts, []string{"cloudless", "cluster", "status", "-o", "json"}).Output()
	ts.Check(err)
	var cluster struct {
		Status struct{ Servers []shownServer }
	}
	ts.Check(json.Unmarshal(out, &cluster))
	return cluster.Status.Servers
}

// follows makes a server a follower by transferring its leadership if it is the leader:
//
//	follows s1
func follows(ts *testscript.TestScript, _ bool, args []string) {
	for _, server := range servers(ts) {
		if server.Name == args[0] && server.Leader {
			if out, err := command(ts, []string{"cloudless", "leader", "transfer"}).CombinedOutput(); err != nil {
				ts.Fatalf("transfer leadership: %v\n%s", err, out)
			}
		}
	}
}
