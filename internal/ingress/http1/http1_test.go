package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
)

// readRequest reads a request and its body, whatever the parts are in which it comes.
func readRequest(text string, size int, r io.Reader) (q Request, body string, err error) {
	b := bufio.NewReaderSize(r, size)
	if err := q.Read(b, 1<<16); err != nil {
		return q, "", err
	}
	var of Body
	of.Reset(b, q.Length)
	all, err := io.ReadAll(&of)
	return q, string(all), err
}

func TestRequestsAreRead(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for _, c := range []struct {
		text   string
		want   Request
		body   string
		fields int
	}{
		{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", Request{Method: "GET", Target: "/", Host: "a", Minor: 1}, "", 1},
		{"\r\nGET /x?y=z HTTP/1.1\r\nhost:a\r\nX: \t b \r\n\r\n", Request{Method: "GET", Target: "/x?y=z", Host: "a", Minor: 1}, "", 2},
		{"GET / HTTP/1.0\r\n\r\n", Request{Method: "GET", Target: "/", Close: true}, "", 0},
		{"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", Request{Method: "GET", Target: "/"}, "", 1},
		{"GET / HTTP/1.1\r\nHost: a\r\nConnection: x, CLOSE\r\n\r\n", Request{Method: "GET", Target: "/", Host: "a", Minor: 1, Close: true}, "", 2},
		{"GET http://b?x HTTP/1.1\r\nHost: a\r\n\r\n", Request{Method: "GET", Target: "/?x", Host: "b", Minor: 1}, "", 1},
		{"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", Request{Method: "OPTIONS", Target: "*", Host: "a", Minor: 1}, "", 1},
		{"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", Request{Method: "POST", Target: "/", Host: "a", Minor: 1, Length: 3}, "abc", 2},
		{"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1;x=y\r\nd\r\n0\r\nT: 1\r\n\r\n", Request{Method: "POST", Target: "/", Host: "a", Minor: 1, Length: Chunked}, "abcd", 2},
		{"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", Request{Method: "GET", Target: "/", Host: "a", Minor: 1, Upgrade: "websocket"}, "", 3},
		{"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n", Request{Method: "GET", Target: "/", Host: "a", Minor: 1}, "", 2},
		{"GET / HTTP/1.1\r\nHost: a\r\nLong: " + long + "\r\n\r\n", Request{Method: "GET", Target: "/", Host: "a", Minor: 1}, "", 2},
		{"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\na", Request{Method: "POST", Target: "/", Host: "a", Minor: 1, Length: 1, Expect: true}, "a", 3},
	} {
		for _, r := range []io.Reader{strings.NewReader(c.text), iotest.OneByteReader(strings.NewReader(c.text))} {
			got, body, err := readRequest(c.text, 64, r)
			fields := len(got.Fields)
			got.Fields, got.Size = nil, 0
			if err != nil || body != c.body || fields != c.fields || !equal(got, c.want) {
				t.Errorf("%.60q: %+v with body %q and %d fields, %v", c.text, got, body, fields, err)
			}
		}
	}
}

func equal(a, b Request) bool {
	return a.Method == b.Method && a.Target == b.Target && a.Host == b.Host && a.Minor == b.Minor && a.Length == b.Length && a.Close == b.Close && a.Upgrade == b.Upgrade && a.Expect == b.Expect
}

// Smuggling lives on what parsers read in different ways. Each of these is refused, at the latest with its body.
func TestAmbiguousRequestsAreRefused(t *testing.T) {
	const chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, text := range map[string]string{
		"length and chunks":           "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nX",
		"chunks and length":           "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\nX",
		"two lengths":                 "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"one length twice":            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\ncontent-length: 1\r\n\r\na",
		"list of lengths":             "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\na",
		"signed length":               "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\na",
		"negative length":             "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\na",
		"hexadecimal length":          "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x1\r\n\r\na",
		"empty length":                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\na",
		"huge length":                 "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\na",
		"other encoding":              "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"two encodings":               "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"encoding twice":              "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"encoding with a tab inside":  "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n",
		"blank before the colon":      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
		"folded line":                 "POST / HTTP/1.1\r\nHost: a\r\nX: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"folded first line":           "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
		"bare line feed":              "GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
		"only bare line feeds":        "GET / HTTP/1.1\nHost: a\n\n",
		"bare carriage return":        "GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n",
		"zero byte":                   "GET / HTTP/1.1\r\nHost: a\x00b\r\n\r\n",
		"no name":                     "GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n",
		"no colon":                    "GET / HTTP/1.1\r\nHost: a\r\nxyz\r\n\r\n",
		"two hosts":                   "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"no host":                     "GET / HTTP/1.1\r\nX: a\r\n\r\n",
		"two blanks":                  "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
		"blank in the target":         "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
		"no version":                  "GET /\r\nHost: a\r\n\r\n",
		"version 2":                   "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
		"version 1.2":                 "GET / HTTP/1.2\r\nHost: a\r\n\r\n",
		"lower case version":          "GET / http/1.1\r\nHost: a\r\n\r\n",
		"no path":                     "GET a HTTP/1.1\r\nHost: a\r\n\r\n",
		"CONNECT":                     "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n",
		"chunks of HTTP/1.0":          "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"another expectation":         "POST / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\nContent-Length: 1\r\n\r\na",
		"chunk size with a blank":     chunked + "1 \r\na\r\n0\r\n\r\n",
		"chunk size with a prefix":    chunked + "0x1\r\na\r\n0\r\n\r\n",
		"signed chunk size":           chunked + "+1\r\na\r\n0\r\n\r\n",
		"no chunk size":               chunked + "\r\na\r\n0\r\n\r\n",
		"huge chunk size":             chunked + "ffffffffffffffff1\r\na\r\n0\r\n\r\n",
		"chunk size with a line feed": chunked + "1\na\r\n0\r\n\r\n",
		"extension with a line feed":  chunked + "1;x\na\r\n0\r\n\r\n",
		"extension with a return":     chunked + "1;x\ra\r\na\r\n0\r\n\r\n",
		"chunk that is longer":        chunked + "1\r\nab\r\n0\r\n\r\n",
		"chunk end with a line feed":  chunked + "1\r\na\n0\r\n\r\n",
		"folded trailer":              chunked + "0\r\nX: a\r\n b\r\n\r\n",
		"endless extension":           chunked + "1;" + strings.Repeat("x", 10_000) + "\r\na\r\n0\r\n\r\n",
		"endless trailers":            chunked + "0\r\n" + strings.Repeat("X: y\r\n", 10_000) + "\r\n",
	} {
		for _, r := range []io.Reader{strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text))} {
			q, body, err := readRequest(text, 4096, r)
			var refused *Error
			if !errors.As(err, &refused) || refused.Status < 400 || refused.Status > 505 {
				t.Errorf("%s: read %s %s with body %q, %v; want a refusal", name, q.Method, q.Target, body, err)
			}
		}
	}
}

func TestHeadsHaveALimit(t *testing.T) {
	for _, text := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 1<<17) + "\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("X: y\r\n", 2000) + "\r\n",
		"GET /" + strings.Repeat("x", 1<<17),
	} {
		_, _, err := readRequest(text, 64, strings.NewReader(text))
		var refused *Error
		if !errors.As(err, &refused) || refused.Status != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("%.40q: %v, want status 431", text, err)
		}
	}
}

func TestEndsAreTold(t *testing.T) {
	if _, _, err := readRequest("", 64, strings.NewReader("")); !errors.Is(err, io.EOF) {
		t.Errorf("without a request: %v", err)
	}
	for _, text := range []string{
		"GET", "GET / HTTP/1.1\r\nHost: a\r\n", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nab",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
	} {
		if _, _, err := readRequest(text, 64, strings.NewReader(text)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: %v, want an unexpected end", text, err)
		}
	}
}

func TestResponsesAreFramed(t *testing.T) {
	for text, want := range map[string]Response{
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n":                        {Status: 200, Length: 3},
		"HTTP/1.1 200\r\n\r\n":                                                {Status: 200, Length: UntilClose, Close: true},
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n":               {Status: 200, Length: Chunked},
		"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n":                        {Status: 200, Close: true},
		"HTTP/1.1 204 No Content\r\n\r\n":                                     {Status: 204},
		"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n":              {Status: 304},
		"HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n": {Status: 101, Upgrade: "websocket"},
	} {
		var got Response
		err := got.Read(bufio.NewReader(strings.NewReader(text)), 1<<16, "GET")
		if err != nil || got.Status != want.Status || got.Length != want.Length || got.Close != want.Close || got.Upgrade != want.Upgrade {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/2 200\r\n\r\n", "HTTP/1.1 20 OK\r\n\r\n", "HTTP/1.1 999 X\r\n\r\n", "HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", "hello\r\n\r\n",
	} {
		var got Response
		var refused *Error
		if err := got.Read(bufio.NewReader(strings.NewReader(text)), 1<<16, "GET"); !errors.As(err, &refused) {
			t.Errorf("%q was read: %+v, %v", text, got, err)
		}
	}
}

// FuzzRequest: whatever is accepted is the same to Go's parser.
func FuzzRequest(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
	f.Add([]byte("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nT: 1\r\n\r\nGET"))
	f.Add([]byte("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET"))
	f.Fuzz(func(t *testing.T, text []byte) {
		q, body, err := readRequest("", 64, bytes.NewReader(text))
		if err != nil {
			return
		}
		other, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(bytes.TrimLeft(text, "\r\n"))))
		if err != nil {
			return // it is stricter with hosts and targets
		}
		theirs, err := io.ReadAll(other.Body)
		if err != nil || string(theirs) != body || other.Method != q.Method || len(other.TransferEncoding) == 1 != (q.Length == Chunked) {
			t.Errorf("%q: we read %s with %q, Go %s with %q, %v", text, q.Method, body, other.Method, theirs, err)
		}
	})
}

// FuzzResponse: a replica may answer anything. What is accepted has the same body as for Go's parser, so that nothing of
// one response can become the next one.
func FuzzResponse(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1"), "GET")
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"), "GET")
	f.Add([]byte("HTTP/1.0 200\r\n\r\nabc"), "GET")
	f.Add([]byte("HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n"), "HEAD")
	f.Fuzz(func(t *testing.T, text []byte, method string) {
		b := bufio.NewReaderSize(bytes.NewReader(text), 64)
		var got Response
		if err := got.Read(b, 1<<16, method); err != nil {
			return
		}
		var of Body
		of.Reset(b, got.Length)
		ours, err := io.ReadAll(&of)
		if err != nil || got.Status < 200 {
			return
		}
		other, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(bytes.TrimLeft(text, "\r\n"))), &http.Request{Method: method})
		if err != nil {
			return // it is stricter with some fields
		}
		theirs, err := io.ReadAll(other.Body)
		if err != nil || !bytes.Equal(ours, theirs) || other.StatusCode != got.Status {
			t.Errorf("%q for %q: we read %d with %q, Go %d with %q, %v", text, method, got.Status, ours, other.StatusCode, theirs, err)
		}
	})
}
