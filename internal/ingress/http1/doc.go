// Package http1 reads and writes HTTP/1.1 messages as a proxy has to: strictly, and without allocating for each field.
//
// It guarantees that two programs cannot disagree about where a message ends that has passed it. What other parsers
// forgive is refused: lines that end without a carriage return, folded lines, two lengths, a length beside chunks, chunk
// sizes with blanks. It must not know routes, nor which fields a proxy changes.
package http1
