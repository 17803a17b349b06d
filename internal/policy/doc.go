// Package policy judges objects and nodes by the rules of the cluster's policies, which are expressions in CEL.
//
// It is pure: policies, objects and the caller go in, findings come out. Expressions are checked against the real types of
// the API, have names as in files, and cannot take long: Check estimates their cost and tries them on a large object before
// they are stored, and every evaluation has a limit. A rule that cannot be evaluated counts as broken.
//
// It also knows what a workload may ask of its machine only with a permission (access.go). It must know neither how callers
// get permissions nor where policies are stored.
package policy
