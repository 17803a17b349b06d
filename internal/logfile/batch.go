package logfile

import "bytes"

// cutPart cuts the next record off p: a line, or as much of one as is there and fits in a
// record.
func cutPart(p []byte) (part, rest []byte, ends bool) {
	window := p[:min(len(p), maxPart+1)]
	if i := bytes.IndexByte(window, '\n'); i >= 0 {
		return p[:i], p[i+1:], true
	}
	n := min(len(p), maxPart)
	return p[:n], p[n:], false
}

// wholeRecords is the length of b up to its last newline.
func wholeRecords(b []byte) int { return bytes.LastIndexByte(b, '\n') + 1 }

// measure counts the output in a batch of records: the lines that end in it and
// the bytes without their newlines.
func measure(records []byte) (lines, size int64) {
	for rec := range bytes.Lines(records) {
		size += int64(len(rec) - headerLen - 1)
		if tag := rec[tagAt]; tag == 'F' || tag == 'f' {
			lines++
		}
	}
	return lines, size
}
