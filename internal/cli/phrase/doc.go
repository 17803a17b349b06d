// Package phrase describes the state of workloads and replicas in a few words, with the reason and the command that
// shows more. It must not know the commands that use it.
package phrase
