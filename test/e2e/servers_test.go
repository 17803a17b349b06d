package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"
)

// killLeader kills the server that leads with SIGKILL, waits until it is gone,
// and says which it was in LEADER, LEADER_DATA and LEADER_ADDR:
//
//	kill9leader
func killLeader(ts *testscript.TestScript, _ bool, _ []string) {
	out, err := command(ts, []string{"cloudless", "cluster", "status", "-o", "json"}).Output()
	ts.Check(err)
	var cluster struct {
		Status struct {
			Servers []struct {
				Name, Address string
				Leader        bool
			}
		}
	}
	ts.Check(json.Unmarshal(out, &cluster))
	for _, server := range cluster.Status.Servers {
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
	ts.Fatalf("no server of this script leads: %s", out)
}
