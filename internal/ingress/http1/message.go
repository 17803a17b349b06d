package http1

import (
	"bufio"
	"strings"
)

// Request is the head of a request.
type Request struct {
	Method string
	// Target is the path with the query, or "*".
	Target string
	// Host is as in the field of that name, or in the target.
	Host string
	// Minor is 0 or 1, the minor version.
	Minor  int
	Fields []Field
	// Length is that of the body, 0 if there is none, or -1 if it is chunked.
	Length int64
	// Close says that the client wants no other request on the connection.
	Close bool
	// Upgrade is the protocol that the client asks for.
	Upgrade string
	// Expect says that the client waits for 100 Continue.
	Expect bool
	// Size is that of the head in bytes.
	Size int
}

// Read reads the next head. It reuses the fields of the last one. It returns io.EOF if there is no other request.
func (q *Request) Read(r *bufio.Reader, most int) error {
	*q = Request{Fields: q.Fields[:0]}
	head, err := readHead(r, most)
	if err != nil {
		return err
	}
	q.Size = len(head) + 2
	line, rest, err := nextLine(head)
	if err != nil {
		return err
	}
	if err := q.first(line); err != nil {
		return err
	}
	if q.Fields, err = parseFields(q.Fields, rest); err != nil {
		return err
	}
	var f framing
	if err := f.read(q.Fields); err != nil {
		return err
	}
	return q.frame(f)
}

// first parses the first line: a method, a target and a version, with one blank between them.
func (q *Request) first(line string) error {
	method, rest, found := strings.Cut(line, " ")
	target, version, more := strings.Cut(rest, " ")
	if !found || !more || method == "" || !all(&inName, method) || target == "" || !all(&inTarget, target) {
		return refuse(400, "the first line is not METHOD TARGET VERSION")
	}
	switch version {
	case "HTTP/1.1":
		q.Minor = 1
	case "HTTP/1.0":
	default:
		if strings.HasPrefix(version, "HTTP/") {
			return refuse(505, "the version is not HTTP/1.1")
		}
		return refuse(400, "the first line is not METHOD TARGET VERSION")
	}
	q.Method = method
	switch {
	case target[0] == '/', target == "*" && method == "OPTIONS":
		q.Target = target
		return nil
	case method == "CONNECT":
		return refuse(405, "this is no forward proxy")
	}
	for _, scheme := range []string{"http://", "https://"} {
		if len(target) <= len(scheme) || !Same(target[:len(scheme)], scheme) {
			continue
		}
		target = target[len(scheme):]
		end := strings.IndexAny(target, "/?")
		if end < 0 {
			q.Host, q.Target = target, "/"
		} else if q.Host, q.Target = target[:end], target[end:]; target[end] == '?' {
			q.Target = "/" + q.Target
		}
		if q.Host != "" {
			return nil
		}
	}
	return refuse(400, "the target is not a path")
}

func (q *Request) frame(f framing) error {
	switch {
	case f.hosts > 1:
		return refuse(400, "there are two hosts")
	case f.hosts == 0 && q.Minor == 1:
		return refuse(400, "there is no host")
	case f.chunked && q.Minor == 0:
		return refuse(400, "HTTP/1.0 has no chunks")
	}
	if q.Host == "" { // the target's counts more
		q.Host = f.host
	}
	q.Length = max(f.length, 0)
	if f.chunked {
		q.Length = -1
	}
	q.Close = f.close || q.Minor == 0 && !f.keepAlive
	if q.Minor == 1 {
		q.Upgrade = f.upgrade
	}
	switch {
	case f.expect == "":
	case !Same(f.expect, "100-continue"):
		return refuse(417, "only 100-continue can be expected")
	default:
		q.Expect = q.Minor == 1
	}
	return nil
}

// Response is the head of a response.
type Response struct {
	Status int
	Fields []Field
	// Length is that of the body, -1 if it is chunked, and -2 if it ends with the connection.
	Length int64
	// Close says that the connection cannot be used again.
	Close bool
	// Upgrade is the protocol of a response with status 101.
	Upgrade string
	Size    int
}

// UntilClose is the length of a body that ends with the connection, and Chunked that of one in chunks.
const (
	Chunked    = -1
	UntilClose = -2
)

// Read reads the head of the next response, which is for a request with the method. It reuses the fields of the last one.
func (p *Response) Read(r *bufio.Reader, most int, method string) error {
	*p = Response{Fields: p.Fields[:0]}
	head, err := readHead(r, most)
	if err != nil {
		return err
	}
	p.Size = len(head) + 2
	line, rest, err := nextLine(head)
	if err != nil {
		return err
	}
	if len(line) < len("HTTP/1.1 200") || line[:7] != "HTTP/1." || line[7] != '0' && line[7] != '1' || line[8] != ' ' || len(line) > 12 && line[12] != ' ' {
		return refuse(502, "the first line of the response is not VERSION STATUS REASON")
	}
	status, ok := decimal(line[9:12])
	if !ok || status < 100 || status > 599 {
		return refuse(502, "the status of the response is not a number from 100 to 599")
	}
	p.Status = int(status)
	if p.Fields, err = parseFields(p.Fields, rest); err != nil {
		return err
	}
	var f framing
	if err := f.read(p.Fields); err != nil {
		return err
	}
	p.Upgrade = f.upgrade
	p.Close = f.close || line[7] == '0' && !f.keepAlive
	switch {
	case method == "HEAD", status < 200, status == 204, status == 304:
		p.Length = 0
	case f.chunked:
		p.Length = Chunked
	case f.length >= 0:
		p.Length = f.length
	default:
		p.Length, p.Close = UntilClose, true
	}
	return nil
}

// AppendField appends one line of a head.
func AppendField(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, "\r\n"...)
}
