// Package doctor says what a machine lacks or has wrong for running Cloudless,
// each thing in a sentence with the command that mends it.
//
// [Look] sees the machine, in throwaway namespaces where something has to be
// tried, and leaves nothing behind; [Examine] judges what was seen and is pure.
// Nothing is mended by itself.
//
// It must not know how the cluster works: what its files mean is told to it by
// the caller, as facts in the [View].
package doctor
