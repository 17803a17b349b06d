// Package scheduler decides on which node each replica should run, and says why. For
// replicas that fit nowhere, it says what rules out every node and what would help.
//
// It is a pure function from a view of the cluster and a request to a plan: no clock, no
// randomness, no I/O. The same nodes, replicas and asks give the same plan to the byte, in
// whatever order they were added to the view. The commit of a plan checks it against the
// newest state. A plan never puts a replica where a filter refuses it, never promises more
// than a node or a quota has, and leaves a replica unplaced only if no node would take it.
//
// Every node is considered for every ask. What makes that cheap:
//
// - Nodes that rules cannot distinguish share a class, and rules are evaluated once for
// each class (class.go).
// - The view is kept current by single changes and consists of a few plain arrays (view.go,
// occupancy.go). A plan works on the view itself and undoes its changes (journal.go).
// - A replica changes only the node that it goes to. Candidates are judged once and kept in
// one heap for each combination of domains; after that only the chosen one is judged again
// (candidates.go).
//
// Read plan.go first, then placing.go. The filters and their sentences are in filter.go,
// the score is in score.go, spreading and affinity in topology.go, preemption in
// preempt.go, explanations in explain.go and help.go. docs/scheduling.md describes it for
// users.
//
// The package knows nothing of the replicated state, of sessions or of time.
package scheduler
