// Package logfile is the on-disk log of one replica: the standard output and standard error
// of its containers, with time and stream.
//
// A log is a directory of files numbered in the order in which they were started
// (00000001.log, 00000002.log, …). A file is only ever appended to and keeps its number;
// the oldest ones are removed when there are too many of them or when they are too old. A
// file holds one record a line:
//
//	2026-01-02T15:04:05.000000000Z stdout F payload
//
// The timestamp is UTC and has a fixed width, so that timestamps compare as text. The
// letter says which part of an output line the record is:
//
//	F  a whole line              P  the first part of a line
//	f  the last part of a line   p  a part in between
//
// Lines are split into parts when they are longer than 16 KiB, or when the container pauses
// in the middle of one, as a prompt does: a part is on disk shortly after it was written,
// however long the rest of the line takes.
//
// The first line of a file is not a record but its header: an id of the log, an id of the
// file (its epoch), the number of the file before it and the machine's boot in which it was
// begun. Files of releases before positions have none. A writer writes the header under a
// temporary name (*.new) and then links the file into place: readers never see a file whose
// header did not fit on the disk.
//
// A [Position] is an epoch and an offset. Readers resume by it; timestamps are for people
// and for Since and Until. A file is written in one boot only, because a crash of the
// machine can undo what was already read: after a restart the log continues in a new file,
// whose number is higher than any that was lost.
//
// What the package guarantees:
// - A [Writer] never blocks on a full disk. It drops what it cannot write, and records in
// the log how much that was as soon as it can.
// - Memory is bounded, whatever the length of a line.
// - Timestamps never decrease within one file, unless the clock is set back by more than a
// second. A clock that is set forward makes no file old.
// - Records are complete: what a crash cut off is never joined to what follows and never
// delivered.
// - [Read] delivers every record once and in the order of each stream, while files are
// written, started and removed, and after a crash of the writer. The order between the two
// streams is that of the writer, which reads two pipes and cannot know more. A reader that
// was interrupted and resumes by position sees the same, whatever clocks say. If records
// are gone before they were read, the reader gets a gap entry.
//
// The package must not know of containers, replicas, containerd or the API.
package logfile
