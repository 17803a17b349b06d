// Package consistency judges what the clients of an object store saw. It is given the history of their calls and says
// what contradicts the promises of S3: each key is a register that all clients share, a listing reads every key of its
// range, and no answer mixes two writes.
//
// It finds acknowledged writes that are lost, stale reads, deleted objects that come back, listings that miss a key or
// show a deleted one, and content that no single write stored. It guarantees that it complains of no history that a
// correct store can have: a call without an answer may have happened, may happen later, or never.
//
// It must not know how the store is reached, nor what faults there were.
package consistency
