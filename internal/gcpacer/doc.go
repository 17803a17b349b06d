// Package gcpacer paces Go's garbage collector in a server: it decides when a
// collection begins, how large the heap may grow, and which work waits until the
// collection ends.
//
// With the runtime's defaults a collection begins late, and every goroutine that
// allocates before it ends must assist: it scans 64 KiB of the heap, however
// little it allocates. A server has two goroutines per node that wake every
// second. With thousands of nodes they use up the first second of a collection,
// and API calls wait as long. So a server with a large heap
//   - starts collections early, while there is room left to allocate;
//   - pauses bulk work until the collection ends, see Collector.Pause;
//   - holds back the messages of nodes for a moment, see Collector.Holder: the
//     heap that was scanned meanwhile needs no assist.
//
// It must not know what the waiting work is.
package gcpacer
