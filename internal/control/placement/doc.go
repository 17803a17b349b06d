// Package placement is what a state says about where replicas are and could be: the model that the scheduler plans on,
// kept up to date with the changes of the state, and the answers to questions about it (explain, usage, quotas).
//
// It only reads. What to change is decided by package replicas, which uses the same model, so that answers and
// decisions agree.
package placement
