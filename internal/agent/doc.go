// Package agent makes one machine run what the cluster has assigned to it.
//
// Assignments come in on a stream that the agent holds open to a server; each
// replica has a goroutine that takes it one step further at a time through a
// driver; reports flow back on the same stream, batched. Logs and exec run on
// streams of their own, which the agent opens when it is asked to, so that no
// server ever needs to reach the node.
//
// What the agent guarantees:
//   - What runs is never touched because a server is away or the agent itself
//     ends, crashes or is upgraded. Assignments and attempts are on disk: the next
//     agent takes running tasks back, starts nothing twice and goes on with the
//     restart policy, with or without a server.
//   - A node that was removed from its cluster stops its replicas, as soon as a
//     server of the cluster says so. That a server does not know it is no removal.
//   - A task whose replica it does not know is only removed once a server has sent
//     the full set of assignments.
//   - Assignments of an older epoch than the newest one it has seen are ignored.
//   - After a reboot, and after Rest, what ran is started again, and that counts as
//     no failure; only what may never be restarted has failed.
//   - Logs outlive their replica until their retention has passed.
//   - Every goroutine has ended when Run returns.
//
// The package meets servers only in the API: it must not know of their state,
// of Raft or of the scheduler, nor of the technology behind a driver.
package agent
