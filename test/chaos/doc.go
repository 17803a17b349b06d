// Package chaos injects faults into a cluster for minutes and then checks its guarantees:
// three servers and three nodes, each a process of the real binary in its own network
// namespace and on its own disk, are killed, paused, cut off from each other, filled up and
// slowed down (disk.go), and given wrong clocks (clock.go) in a random order that a seed fixes (schedule.go,
// faults.go), while clients read, write and compare-and-set (clients.go), and others follow
// the output of a program that numbers its lines, and replicas call each other by name. An operator releases a service
// and drains nodes (operator.go) under constant load (load.go), and a singleton runs (singleton.go).
//
// Afterwards the history of all calls must be linearizable (history.go), every acknowledged
// write must exist, everything that should run must run (verdict.go), and every line that
// is in a log must have reached every follower once and in order (logs.go). No call between
// replicas may fail because of a server or an agent (talkers.go). No request to the service may fail, and it may never have
// fewer replicas than minAvailable, unless a fault explains it. The singleton may never run twice.
//
// The object store has a run of its own with four nodes (objects_test.go): clients use it over S3 (objects_clients.go) while
// its machines suffer the same faults and bits are flipped on their disks (objects_faults.go). Package consistency judges
// what they saw.
//
// All of it happens in the test's own namespaces (test/sandbox): whatever happens to the
// test, nothing is left on the machine.
package chaos
