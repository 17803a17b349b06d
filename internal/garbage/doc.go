// Package garbage decides how much garbage a server may have, when it is collected, and who waits meanwhile.
//
// Left alone, the runtime begins a collection late, and everybody who needs memory before its end has to help. However
// little that is, each goroutine looks through 64 KiB of the heap for it, once in each collection. Of a server's goroutines
// for a node two wake every second: with thousands of nodes the first second of a collection is used up by them, and
// whoever wants a change waits as long. So a server with a large heap
//   - begins in time, with room left for what is allocated meanwhile;
//   - has work that comes in bulk pause until the end, see [Collector.Pause]: the collection, which has to be paid for
//     anyway, is over the sooner;
//   - lets the messages of nodes wait for a moment, see [Collector.Holder]. What the cores have looked through in that
//     time, they need not look through themselves.
//
// It must not know what those do who wait.
package garbage
