// Package agent makes one machine run what the cluster has assigned to it.
//
// The agent holds a stream open to a server, which sends assignments. Each replica has a
// goroutine that takes one step at a time through a driver. Reports flow back on the same
// stream, batched. Logs and exec use streams of their own, which the agent opens on
// request, so that servers never connect to the node.
//
// What the agent guarantees:
// - It never touches what runs because a server is away or the agent itself ends, crashes
// or is upgraded. Assignments and attempts are on disk: the next agent reattaches to
// running tasks, starts nothing twice and continues with the restart policy, with or
// without a server.
// - A node that was removed from its cluster stops its replicas as soon as a server of the
// cluster says so. A server that merely does not know the node proves no removal.
// - A task with an unknown replica is removed only after a server has sent the full set of
// assignments.
// - Assignments of an older epoch than the newest one it has seen are ignored.
// - After a reboot, and after Down, what ran is started again, which does not count as a
// failure. Only replicas that may never be restarted have failed.
// - Replicas are probed with or without a server. A replica that was ready stays so until a probe fails, also if the
// agent is restarted.
// - Logs outlive their replica by the retention period.
// - Every goroutine has ended when Run returns.
//
// The package shares only the API with servers: it must not know of their state, of Raft or
// of the scheduler, nor of the technology behind a driver.
package agent
