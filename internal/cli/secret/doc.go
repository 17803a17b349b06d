// Package secret is the commands secret set, ls, get, rotate, rm and deliveries, and the flag --secret of run. A value comes
// from a prompt without echo, a file or standard input, and never from an argument: others on the machine can read those.
// No command shows a value.
//
// It must not know how the cluster keeps values.
package secret
