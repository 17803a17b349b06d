// Package ingress answers for routes: it opens ports, finds the route of each request or connection, and passes it on to
// an endpoint of a service. It is given what a node must know as messages, a full set and then deltas, and gives back
// what it has measured.
//
// A new message never interrupts what is open: requests keep the route that they have found, and connections their
// listeners' successors. The engine reads HTTP/1.1 strictly (package http1), and repeats no request that a backend may
// have received, except for one that is idempotent by definition and met a connection that its backend had closed while
// it was idle.
//
// It must not know sessions, agents or processes.
package ingress
