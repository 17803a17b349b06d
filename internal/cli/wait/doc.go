// Package wait waits until workloads are in the desired state, or until it is clear that they will not get there, and
// shows their replicas meanwhile; and until routes are answered. An interrupt ends only the waiting.
//
// It must not know the commands that wait.
package wait
