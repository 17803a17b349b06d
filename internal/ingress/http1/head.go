package http1

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Field is one line of a head.
type Field struct{ Name, Value string }

// Error is the refusal of a message.
type Error struct {
	// Status is the answer for a client that sent it.
	Status int
	Reason string
}

func (e *Error) Error() string { return e.Reason }

func refuse(status int, format string, args ...any) error {
	return &Error{Status: status, Reason: fmt.Sprintf(format, args...)}
}

// maxFields is how many fields a head may have.
const maxFields = 1000

var headEnd = []byte("\r\n\r\n")

// readHead reads up to the empty line after a head, and returns it with the line break of its last line.
func readHead(r *bufio.Reader, most int) (string, error) {
	var long []byte // what did not fit into the buffer
	for want := 1; ; {
		if _, err := r.Peek(want); err != nil {
			if errors.Is(err, io.EOF) && (r.Buffered() > 0 || len(long) > 0) {
				err = io.ErrUnexpectedEOF
			}
			return "", err
		}
		here, _ := r.Peek(r.Buffered())
		if long == nil {
			// Clients may send an empty line too much after a body.
			if len(here) >= 2 && here[0] == '\r' && here[1] == '\n' {
				_, _ = r.Discard(2)
				want = 1
				continue
			}
			if end := bytes.Index(here, headEnd); end >= 0 {
				if end+4 > most {
					return "", refuse(431, "the head of the message is larger than %d bytes", most)
				}
				head := string(here[:end+2])
				_, _ = r.Discard(end + 4)
				return head, nil
			}
			if len(here) < r.Size() {
				if len(here) > most {
					return "", refuse(431, "the head of the message is larger than %d bytes", most)
				}
				if err := checkLines(here); err != nil {
					return "", err
				}
				want = len(here) + 1
				continue
			}
		}
		// The end may be partly in what came before.
		before := len(long)
		long = append(long, here...)
		end := bytes.Index(long[max(0, before-3):], headEnd)
		if end >= 0 {
			end += max(0, before-3)
			if end+4 > most {
				return "", refuse(431, "the head of the message is larger than %d bytes", most)
			}
			_, _ = r.Discard(end + 4 - before)
			return string(long[:end+2]), nil
		}
		if len(long) > most {
			return "", refuse(431, "the head of the message is larger than %d bytes", most)
		}
		if err := checkLines(long); err != nil {
			return "", err
		}
		_, _ = r.Discard(len(here))
		want = 1
	}
}

// checkLines refuses what no later byte can make right, so that its sender need not wait for a timeout.
func checkLines(b []byte) error {
	for at := 0; ; at++ {
		next := bytes.IndexByte(b[at:], '\n')
		if next < 0 {
			return nil
		}
		if at += next; at == 0 || b[at-1] != '\r' {
			return errBareLF
		}
	}
}

var errBareLF = refuse(400, "a line ends without a carriage return")

// nextLine splits the first line off a head.
func nextLine(head string) (line, rest string, err error) {
	end := strings.IndexByte(head, '\n')
	if end < 1 || head[end-1] != '\r' {
		return "", "", errBareLF
	}
	return head[:end-1], head[end+1:], nil
}

// Whether a byte may be in a name, and in a value.
var inName, inValue, inTarget = allowed()

func allowed() (inName, inValue, inTarget [256]bool) {
	for c := range 256 {
		inValue[c] = c == '\t' || c >= ' ' && c != 0x7f
		inTarget[c] = c > ' ' && c != 0x7f && c != '#'
	}
	for c := range byte(0x7f) {
		inName[c] = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
	}
	return inName, inValue, inTarget
}

func all(in *[256]bool, s string) bool {
	for i := range len(s) {
		if !in[s[i]] {
			return false
		}
	}
	return true
}

// parseFields appends the fields of a head. It refuses everything that parsers read in different ways.
func parseFields(fields []Field, head string) ([]Field, error) {
	for head != "" {
		line, rest, err := nextLine(head)
		if err != nil {
			return fields, err
		}
		head = rest
		if line == "" {
			return fields, refuse(400, "there is an empty line in the head")
		}
		if line[0] == ' ' || line[0] == '\t' {
			return fields, refuse(400, "a field is continued on the next line")
		}
		colon := strings.IndexByte(line, ':')
		if colon < 1 {
			return fields, refuse(400, "a line of the head has no name")
		}
		name, value := line[:colon], trim(line[colon+1:])
		if !all(&inName, name) {
			return fields, refuse(400, "the name of a field has characters that are not allowed")
		}
		if !all(&inValue, value) {
			return fields, refuse(400, "the field %s has characters that are not allowed", name)
		}
		if len(fields) >= maxFields {
			return fields, refuse(431, "there are more than %d fields", maxFields)
		}
		fields = append(fields, Field{Name: name, Value: value})
	}
	return fields, nil
}

func trim(s string) string {
	for s != "" && (s[0] == ' ' || s[0] == '\t') {
		s = s[1:]
	}
	for s != "" && (s[len(s)-1] == ' ' || s[len(s)-1] == '\t') {
		s = s[:len(s)-1]
	}
	return s
}

// Is reports whether the field has a name, which must be in lower case.
func (f Field) Is(lower string) bool { return Same(f.Name, lower) }

// Same compares a token with one in lower case.
func Same(token, lower string) bool {
	if len(token) != len(lower) {
		return false
	}
	for i := range len(token) {
		c := token[i]
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// Get returns the value of the first field with a name, which must be in lower case.
func Get(fields []Field, lower string) string {
	for _, f := range fields {
		if f.Is(lower) {
			return f.Value
		}
	}
	return ""
}

// Tokens calls yield for each element of a list such as that of Connection, until it returns false.
func Tokens(list string, yield func(token string) bool) {
	for list != "" {
		token, rest, _ := strings.Cut(list, ",")
		list = rest
		if token = trim(token); token != "" && !yield(token) {
			return
		}
	}
}

// HasToken reports whether a list contains a token, which must be in lower case.
func HasToken(list, lower string) (found bool) {
	Tokens(list, func(token string) bool {
		found = Same(token, lower)
		return !found
	})
	return found
}

// framing is what the fields of a head say about the body and the connection.
type framing struct {
	length           int64 // -1 if there is none
	chunked          bool
	host             string
	hosts            int
	close, keepAlive bool
	upgrade          string // the protocol, if Connection names the field as well
	expect           string
}

func (f *framing) read(fields []Field) error {
	f.length = -1
	upgrade, upgrades := "", false
	for _, field := range fields {
		// The lengths of the names that matter.
		switch len(field.Name) {
		case len("host"):
			if field.Is("host") {
				f.host = field.Value
				f.hosts++
			}
		case len("expect"):
			if field.Is("expect") {
				f.expect = field.Value
			}
		case len("upgrade"):
			if field.Is("upgrade") {
				upgrade = field.Value
			}
		case len("connection"):
			if field.Is("connection") {
				f.close = f.close || HasToken(field.Value, "close")
				f.keepAlive = f.keepAlive || HasToken(field.Value, "keep-alive")
				upgrades = upgrades || HasToken(field.Value, "upgrade")
			}
		case len("content-length"):
			if !field.Is("content-length") {
				continue
			}
			if f.length >= 0 {
				return refuse(400, "there are two lengths")
			}
			n, ok := decimal(field.Value)
			if !ok {
				return refuse(400, "the length is not a number")
			}
			f.length = n
		case len("transfer-encoding"):
			if !field.Is("transfer-encoding") {
				continue
			}
			if f.chunked || !Same(field.Value, "chunked") {
				return refuse(501, "the transfer encoding is not chunked, once")
			}
			f.chunked = true
		}
	}
	if f.chunked && f.length >= 0 {
		return refuse(400, "there is a length beside a transfer encoding")
	}
	if upgrades {
		f.upgrade = upgrade
	}
	return nil
}

// decimal reads a length: digits and nothing else.
func decimal(s string) (n int64, ok bool) {
	if s == "" || len(s) > 18 {
		return 0, false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int64(s[i]-'0')
	}
	return n, true
}

// IsToken reports whether s can be a method or the name of a field.
func IsToken(s string) bool { return s != "" && all(&inName, s) }

// IsTarget reports whether s can be the target of a request.
func IsTarget(s string) bool { return s != "" && (s[0] == '/' || s == "*") && all(&inTarget, s) }
