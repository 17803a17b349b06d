// Package accesslog writes a JSON line for each request into a file that is rotated by its size.
//
// A log that cannot be written loses lines, never requests. It must not know what a request is.
package accesslog

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	// Name is that of the file; older ones have a number behind it.
	Name = "access.log"
	// keep is how many older files there are, and most how large one gets.
	keep = 4
	most = 64 << 20
	// full is how much is collected before it is written.
	full = 32 << 10
)

// Log is an access log.
type Log struct {
	path string
	most int64

	mu   sync.Mutex
	file *os.File
	size int64
	text []byte
}

// Open returns the log in a folder. The file is made with the first line.
func Open(dir string) *Log { return &Log{path: filepath.Join(dir, Name), most: most} }

// Write adds one line, which add appends.
func (l *Log) Write(add func([]byte) []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(add(l.text), '\n')
	if len(l.text) >= full {
		l.flush()
	}
}

// Flush writes what was collected.
func (l *Log) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
}

func (l *Log) flush() {
	text := l.text
	l.text = l.text[:0]
	if len(text) == 0 {
		return
	}
	if l.file != nil && l.size+int64(len(text)) > l.most {
		l.rotate()
	}
	if l.file == nil {
		file, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return
		}
		l.file = file
		if info, err := file.Stat(); err == nil {
			l.size = info.Size()
		}
	}
	n, err := l.file.Write(text)
	if l.size += int64(n); err != nil { // the next attempt opens it again
		l.close()
	}
}

func (l *Log) rotate() {
	l.close()
	for n := keep - 1; n >= 1; n-- {
		_ = os.Rename(l.path+"."+strconv.Itoa(n), l.path+"."+strconv.Itoa(n+1)) // most of the time it is not there
	}
	_ = os.Rename(l.path, l.path+".1") // otherwise it grows
}

func (l *Log) close() {
	if l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
}

// Close writes what was collected, and closes the file.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
	l.close()
}

// Line builds a JSON object without allocating.
type Line []byte

// Begin begins an object at the end of text, with its time.
func Begin(text []byte, at time.Time) Line {
	text = append(text, `{"time":"`...)
	text = at.UTC().AppendFormat(text, "2006-01-02T15:04:05.000Z")
	return append(text, '"')
}

// String adds a value unless it is empty.
func (l Line) String(name, value string) Line {
	if value == "" {
		return l
	}
	return quote(l.name(name), value)
}

// Int adds a number.
func (l Line) Int(name string, n int64) Line { return strconv.AppendInt(l.name(name), n, 10) }

// Milliseconds adds a length of time.
func (l Line) Milliseconds(name string, d time.Duration) Line {
	return strconv.AppendFloat(l.name(name), float64(d.Microseconds())/1000, 'f', 3, 64)
}

// End ends the object.
func (l Line) End() []byte { return append(l, '}') }

func (l Line) name(name string) Line {
	l = append(l, `,"`...)
	l = append(l, name...)
	return append(l, `":`...)
}

const digits = "0123456789abcdef"

// quote appends a JSON string, whatever bytes a client has sent.
func quote(b []byte, s string) []byte {
	b = append(b, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			switch {
			case c == '"' || c == '\\':
				b = append(b, '\\', c)
			case c < ' ' || c == 0x7f:
				b = append(b, '\\', 'u', '0', '0', digits[c>>4], digits[c&0xf])
			default:
				b = append(b, c)
			}
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			b = append(b, `\ufffd`...)
		} else {
			b = append(b, s[i:i+n]...)
		}
		i += n
	}
	return append(b, '"')
}
