// Package telemetry is how a process tells what it does: metrics, logs with
// request ids, and traces.
//
// Every metric stands once in the catalogue, from which it is registered and
// from which docs/metrics.md is written (make docs). Every log line of a call
// names the call's request id. Traces are only made when somebody has said
// where to send them: until then a *Tracing is nil, and its methods do nothing
// and cost nothing. A collector that fails never disturbs what is traced.
//
// The package decides nothing and holds no state of the cluster; those who
// measure hand it numbers and names.
package telemetry
