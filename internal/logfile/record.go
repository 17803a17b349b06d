package logfile

import (
	"errors"
	"fmt"
	"time"
)

// Stream is one of the two outputs of a process.
type Stream string

// The streams of a process.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// streams are both of them, by their index.
var streams = [2]Stream{Stdout, Stderr}

// index gives each stream its place in an array of two.
func (s Stream) index() int {
	if s == Stderr {
		return 1
	}
	return 0
}

const (
	stampLayout = "2006-01-02T15:04:05.000000000Z"
	tagAt       = len(stampLayout) + len(" stdout ")
	headerLen   = tagAt + len("F ")
	maxPart     = 16 << 10
)

// record is a line of output, or a part of one.
type record struct {
	time   time.Time
	stream Stream
	begins bool // the line does not begin in an earlier record
	ends   bool // the line does not continue in a later record
	line   []byte
}

// tag is the letter for the record's part of its line.
func (r record) tag() byte {
	switch {
	case r.begins && r.ends:
		return 'F'
	case r.begins:
		return 'P'
	case r.ends:
		return 'f'
	default:
		return 'p'
	}
}

// appendTo adds the record and its newline to b.
func (r record) appendTo(b []byte) []byte {
	b = r.time.UTC().AppendFormat(b, stampLayout)
	return r.appendRest(b)
}

// appendRest adds what follows the timestamp.
func (r record) appendRest(b []byte) []byte {
	b = append(b, ' ')
	b = append(b, r.stream...)
	b = append(b, ' ', r.tag(), ' ')
	b = append(b, r.line...)
	return append(b, '\n')
}

var errRecord = errors.New("not a log record")

// parseRecord reads a record without its newline. The record's line is a subslice of b.
func parseRecord(b []byte) (record, error) {
	const stampLen = len(stampLayout)
	if len(b) < headerLen || b[stampLen] != ' ' || b[tagAt-1] != ' ' || b[headerLen-1] != ' ' {
		return record{}, errRecord
	}
	r := record{stream: Stream(b[stampLen+1 : tagAt-1]), line: b[headerLen:]}
	if r.stream != Stdout && r.stream != Stderr {
		return record{}, errRecord
	}
	switch b[tagAt] {
	case 'F':
		r.begins, r.ends = true, true
	case 'P':
		r.begins = true
	case 'f':
		r.ends = true
	case 'p':
	default:
		return record{}, errRecord
	}
	var err error
	r.time, err = parseStamp(b[:stampLen])
	if err != nil {
		return record{}, errRecord
	}
	return r, nil
}

// parseStamp reads the timestamp at the beginning of a record.
func parseStamp(b []byte) (time.Time, error) {
	if len(b) < len(stampLayout) {
		return time.Time{}, errRecord
	}
	b = b[:len(stampLayout)]
	// Package time would accept a comma as the point, and a sign as a digit.
	const point = len("2006-01-02T15:04:05")
	for i, c := range b[point:] {
		isDigit := '0' <= c && c <= '9'
		if want := 0 < i && i < len(".000000000"); isDigit != want {
			return time.Time{}, errRecord
		}
	}
	if b[point] != '.' {
		return time.Time{}, errRecord
	}
	t, err := time.Parse(stampLayout, string(b))
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: %w", errRecord, err)
	}
	return t, nil
}
