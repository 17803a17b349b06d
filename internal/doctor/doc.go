// Package doctor checks whether a machine can run Cloudless. Each finding is a sentence with the command that fixes it.
//
// [Look] inspects the machine and leaves nothing behind; it tries things out in throwaway namespaces. [Examine] judges
// the result and is pure. Neither fixes anything.
//
// It must not know how the cluster works: the caller adds facts about the cluster's files to the [View].
package doctor
