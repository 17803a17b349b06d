// Package telemetry is how a process reports what it does: metrics, logs with request ids,
// and traces.
//
// Every metric is defined once in the catalogue, from which it is registered and
// docs/metrics.md is generated (make docs). Every log line of a call has the call's request
// id. Traces exist only if an endpoint is configured: until then a *Tracing is nil, and its
// methods do nothing and cost nothing. A failing collector never disturbs what is traced.
//
// The package decides nothing and holds no state of the cluster; its callers pass numbers
// and names.
package telemetry
