package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
)

const (
	// maxChunkLine limits the line before a chunk, and maxTrailers the fields after the last one.
	maxChunkLine = 256
	maxTrailers  = 16 << 10
)

// Body reads the body of a message.
type Body struct {
	// Trailers are the fields after the last chunk, once the body has been read.
	Trailers []Field

	r      *bufio.Reader
	length int64 // left, or Chunked, or UntilClose
	chunk  int64 // left of this chunk
	first  bool  // before the first chunk
	err    error // io.EOF at the end
}

// Reset begins the body of another message.
func (b *Body) Reset(r *bufio.Reader, length int64) {
	*b = Body{r: r, length: length, first: true}
	if length == 0 {
		b.err = io.EOF
	}
}

// Ended reports whether all of the body was read.
func (b *Body) Ended() bool { return errors.Is(b.err, io.EOF) }

// Ready reports whether Read returns something without waiting.
func (b *Body) Ready() bool {
	switch n := b.r.Buffered(); {
	case b.err != nil:
		return true
	case b.length != Chunked || b.chunk > 0 || n == 0:
		return n > 0
	default: // the line before the next chunk must be complete, and not be all there is
		here, _ := b.r.Peek(n)
		if !b.first {
			here = here[min(2, n):]
		}
		end := bytes.IndexByte(here, '\n')
		return end >= 0 && end+1 < len(here)
	}
}

// Read returns io.EOF with the last bytes already if it knows that they are the last.
func (b *Body) Read(p []byte) (n int, err error) {
	if b.err != nil {
		return 0, b.err
	}
	switch {
	case b.length == Chunked:
		n, err = b.readChunked(p)
	case b.length == UntilClose:
		n, err = b.r.Read(p)
	default:
		if int64(len(p)) > b.length {
			p = p[:b.length]
		}
		n, err = b.r.Read(p)
		b.length -= int64(n)
		if b.length == 0 {
			err = io.EOF
		} else if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
	}
	b.err = err
	if n > 0 && !errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

func (b *Body) readChunked(p []byte) (n int, err error) {
	if b.chunk == 0 {
		if err := b.nextChunk(); err != nil {
			return 0, err
		}
	}
	if int64(len(p)) > b.chunk {
		p = p[:b.chunk]
	}
	n, err = b.r.Read(p)
	b.chunk -= int64(n)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	// The end of the body is often here already: then the reader need not ask again.
	if err == nil && b.chunk == 0 {
		if next, _ := b.r.Peek(min(b.r.Buffered(), 7)); string(next) == "\r\n0\r\n\r\n" {
			_, _ = b.r.Discard(7)
			err = io.EOF
		}
	}
	return n, err
}

// nextChunk reads up to the data of the next chunk. It returns io.EOF after the last one and the trailers.
func (b *Body) nextChunk() error {
	if !b.first {
		if err := b.lineBreak(); err != nil {
			return err
		}
	}
	b.first = false
	line, err := b.line(maxChunkLine)
	if err != nil {
		return err
	}
	digits := 0
	for ; digits < len(line) && isHex(line[digits]); digits++ {
	}
	if digits == 0 || digits > 15 || digits < len(line) && line[digits] != ';' {
		return refuse(400, "the size of a chunk is not a hexadecimal number")
	}
	if !all(&inValue, line[digits:]) {
		return refuse(400, "a chunk has characters that are not allowed")
	}
	size, err := strconv.ParseInt(line[:digits], 16, 64)
	if err != nil {
		return refuse(400, "the size of a chunk is not a hexadecimal number")
	}
	if size > 0 {
		b.chunk = size
		return nil
	}
	for left := maxTrailers; ; {
		line, err := b.line(left)
		if err != nil {
			return err
		}
		if line == "" {
			return io.EOF
		}
		left -= len(line) + 2
		if b.Trailers, err = parseFields(b.Trailers, line+"\r\n"); err != nil {
			return err
		}
	}
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func (b *Body) lineBreak() error {
	for _, want := range []byte("\r\n") {
		c, err := b.r.ReadByte()
		if err != nil {
			return unexpected(err)
		}
		if c != want {
			return refuse(400, "a chunk is longer than its size")
		}
	}
	return nil
}

// line reads one line without its end.
func (b *Body) line(most int) (string, error) {
	var line []byte
	for {
		c, err := b.r.ReadByte()
		if err != nil {
			return "", unexpected(err)
		}
		if c == '\n' {
			if len(line) == 0 || line[len(line)-1] != '\r' {
				return "", errBareLF
			}
			return string(line[:len(line)-1]), nil
		}
		if len(line) > 0 && line[len(line)-1] == '\r' {
			return "", refuse(400, "a carriage return does not end a line")
		}
		if len(line) >= most {
			return "", refuse(400, "a line between chunks is too long")
		}
		line = append(line, c)
	}
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// WriteChunk writes one chunk.
func WriteChunk(w *bufio.Writer, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	var line [18]byte
	head := append(strconv.AppendUint(line[:0], uint64(len(p)), 16), "\r\n"...)
	_, _ = w.Write(head) // the writer remembers its first error
	_, _ = w.Write(p)
	_, err := w.WriteString("\r\n")
	return err
}

// WriteEnd writes the end of a body in chunks.
func WriteEnd(w *bufio.Writer, trailers []Field) error {
	_, _ = w.WriteString("0\r\n") // the writer remembers its first error
	for _, f := range trailers {
		_, _ = w.WriteString(f.Name)
		_, _ = w.WriteString(": ")
		_, _ = w.WriteString(f.Value)
		_, _ = w.WriteString("\r\n")
	}
	_, err := w.WriteString("\r\n")
	return err
}
