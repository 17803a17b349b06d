// Package routes says what the routes of a state mean: what a node of the ingress must know to answer for them, which nodes
// these are, and what is to be said about a route.
//
// It is pure: a snapshot in, an answer out. It must not know sessions, the ingress process or how keys are sealed: it names
// sealed keys, and whoever sends them to a node opens them.
package routes
