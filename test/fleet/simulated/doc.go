// Package simulated is thousands of nodes in one process, for measurements and tests of servers.
//
// Each node is a member like any other: it has enrolled with a join token, and has its own key, certificate and TLS
// connection with the real session stream on it. It says hello, reports as often as the cluster asks, acknowledges
// assigned replicas as running after a while, reports the end of stopped ones, reconnects after a broken connection,
// and switches to another server when one is gone. It runs nothing.
//
// It guarantees:
// - A node is cheap: one waiting goroutine, and a few KiB beside its TLS connection. All nodes share the buffers and
// the few goroutines that report.
// - A node can be killed, silenced and brought back at any time.
// - Nothing is left when [Fleet.Run] returns, except for nodes that go offline.
//
// It must not know how a server works: it only uses the API.
package simulated
