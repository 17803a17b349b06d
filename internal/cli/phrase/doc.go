// Package phrase says in a few words how workloads and replicas are, why they are not better, and which command shows
// more. It must not know the commands that show it.
package phrase
