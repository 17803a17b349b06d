// Package wait waits until workloads are as they were asked to be, or until it is clear that they will not be, and shows
// their replicas meanwhile. An interrupt ends the waiting and nothing else.
//
// It must not know the commands that wait.
package wait
