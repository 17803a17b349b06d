// Package simulated is thousands of nodes in one process, for measurements and tests of servers.
//
// Each node is a member like any other: it has enrolled with a join token, has a key and a certificate of its own, one
// TLS connection of its own and the real session stream on it. It says hello, reports as often as the cluster asks
// for, acknowledges what it is assigned as running after a while, reports the end of what is to stop, comes back after
// a broken connection, and goes on to another server when one is gone. It runs nothing.
//
// It guarantees that
//   - a node costs little: one goroutine, that waits, and a few KiB beside its TLS connection; all nodes share the
//     buffers and the few goroutines that report;
//   - a node can be killed, made silent and brought back at any time;
//   - nothing is left behind when [Fleet.Run] returns, but nodes that the cluster takes for offline.
//
// It must not know how a server works: it only speaks the API.
package simulated
