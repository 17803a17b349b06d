package logfile

import (
	"fmt"
	"strconv"
	"strings"
)

// Position is a place in a log from which reading can resume: the next record of each stream. It does not depend on any
// clock, and stays valid across restarts of writer and reader and while files are started and removed. The two streams
// share a place except if reading began in the middle of a line.
type Position struct {
	Stdout, Stderr Place
}

// Place is a file of a log and an offset in it.
type Place struct {
	File   uint64
	Offset int64
	// Log and Epoch identify the file beyond its number; zero for one without a header.
	Log, Epoch uint32
	// Open is whether the last record before the place was a part of a line that continues.
	Open bool
}

// at is the place without the identity of its file.
func (p Place) at() position { return position{p.File, p.Offset} }

// String is the text of a position for ParsePosition. Readers store it and send it back; they must not interpret it.
func (p Position) String() string {
	if p.Stdout == p.Stderr {
		return string(p.Stdout.appendTo(nil))
	}
	return string(p.Stderr.appendTo(append(p.Stdout.appendTo(nil), ',')))
}

func (p Place) appendTo(b []byte) []byte {
	b = strconv.AppendUint(b, p.File, 10)
	b = fmt.Appendf(b, ".%08x.%08x.", p.Log, p.Epoch)
	b = strconv.AppendInt(b, p.Offset, 10)
	if p.Open {
		b = append(b, '+')
	}
	return b
}

// ParsePosition is the inverse of [Position.String].
func ParsePosition(text string) (Position, error) {
	first, second, differ := strings.Cut(text, ",")
	stdout, ok := parsePlace(first)
	stderr := stdout
	if ok && differ {
		stderr, ok = parsePlace(second)
	}
	p := Position{stdout, stderr}
	if !ok || p.String() != text {
		return Position{}, fmt.Errorf("%.100q is not a position in a log", text)
	}
	return p, nil
}

func parsePlace(text string) (Place, bool) {
	text, open := strings.CutSuffix(text, "+")
	fields := strings.Split(text, ".")
	if len(fields) != 4 {
		return Place{}, false
	}
	file, fileErr := strconv.ParseUint(fields[0], 10, 64)
	log, logErr := parseID(fields[1])
	epoch, epochErr := parseID(fields[2])
	offset, offsetErr := strconv.ParseInt(fields[3], 10, 64)
	ok := fileErr == nil && logErr == nil && epochErr == nil && offsetErr == nil && file > 0 && offset >= 0
	return Place{File: file, Offset: offset, Log: log, Epoch: epoch, Open: open}, ok
}
