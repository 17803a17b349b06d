// Package roles decides what callers may do: which verbs on which kinds, in one namespace or in all. It knows the roles
// that always exist, adds up the roles of a caller, and finds the smallest role that would be sufficient.
//
// It is pure: roles and bindings come in as values. It must not know requests, tokens' secrets or the state.
package roles
