// Package services says what the services of a state are: which service a workload has by itself, which addresses a
// service gets, which endpoints it has, which ports of nodes lead to them, and which services a change concerns.
//
// It is pure: a snapshot in, an answer out. It must not know the API's calls, the leader's loop or the rules of nodes,
// which all ask it.
package services
