// Package registry is the cluster's own OCI registry, in process and over one folder.
//
// It guarantees:
//
// - What was pushed is on disk before the push is acknowledged, and an upload that a
// restart has interrupted can be resumed after it.
// - Abandoned uploads are removed after a week.
// - A deleted image can be restored for a day, and its blobs stay until then.
// - Blobs that belong to no image are collected while others push and pull, and never one
// that a push in progress relies on.
// - Nothing is dialled, listened on or exported, whatever the environment variables say: no
// metrics, no traces, no notifications.
// - All of its goroutines have ended when Close returns.
//
// It must not know the callers: authentication, authorization and TLS belong to the API
// edge, which wraps Handler. It must not know what images are for.
package registry
