// Package scheduler says on which node each replica should run, why there, and
// for what fits nowhere, what speaks against every node and what would help.
//
// It is a pure function from a view of the cluster and a request to a plan: no
// clock, no randomness, no I/O. The same nodes, replicas and asks give the same
// plan to the byte, in whatever order they came into the view; whoever commits a
// plan checks it against the newest state. A plan never puts a replica where a
// filter refuses it, never promises more than a node or a quota has, and leaves a
// replica unplaced only if no node would take it.
//
// Every node is looked at for every ask. What makes that cheap:
//
//   - Nodes that differ in nothing that rules can see share a class, and rules
//     are asked once for each class (class.go).
//   - The view is kept current by single changes and is a few plain arrays
//     (view.go, occupancy.go). A plan works on the view itself and takes back
//     what it did (journal.go).
//   - A replica changes only the node that it goes to. Candidates are judged
//     once, kept in one heap for each combination of domains, and after that
//     only the chosen one is judged again (candidates.go).
//
// Read plan.go first, then placing.go. The filters and their sentences are in
// filter.go, the score is in score.go, spreading and affinity in topology.go,
// preemption in preempt.go, what is told about nodes in explain.go and help.go.
// docs/scheduling.md tells it to users.
//
// The package knows nothing of the replicated state, of sessions or of time.
package scheduler
