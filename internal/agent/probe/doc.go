// Package probe finds out whether the program of one replica has started, is alive and can serve.
//
// A pure state machine (machine.go) turns the results of attempts into a verdict. A loop around it (monitor.go) makes
// attempts when they are due: by HTTP, TCP, gRPC or a command in the replica (ask.go). A replica without a readiness
// probe serves once it listens on its ports (listen.go).
//
// The package must not know of records, sessions, reports or servers: its user says how to reach the program, and gets
// every new verdict.
package probe
