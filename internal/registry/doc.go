// Package registry is the cluster's own OCI registry, in process and over one
// folder.
//
// It guarantees that
//
//   - what was pushed is on disk before the push is acknowledged, and an upload
//     that a restart has interrupted can be resumed after it,
//   - uploads that nobody finishes are removed after a week,
//   - a deleted image can be had back for a day, and its blobs stay until then,
//   - blobs that belong to no image are collected while others push and pull,
//     and never one that a push under way relies on,
//   - nothing is dialled, listened on or exported, whatever the environment
//     variables say: no metrics, no traces, no notifications,
//   - all of its goroutines have ended when Close returns.
//
// It must not know who calls: authentication, authorization and TLS belong to
// the API edge, which wraps Handler. It must not know what images are for.
package registry
