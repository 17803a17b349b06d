package s3

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

// ServeHTTP answers a request. It hands the request to versitygw without a connection in between, so that bodies stream
// in both directions and nothing is parsed twice.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{ctx: r.Context(), claimed: claimedKey(r), operation: unknownOperation, began: time.Now()}
	in := &incoming{call: c, body: r.Body, control: http.NewResponseController(w), stall: g.stall, waits: expects(r)}
	c.chunked = r.Header.Get("X-Amz-Decoded-Content-Length") != ""
	c.escaped = r.URL.Query().Get("encoding-type") == "url"
	c.form = strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/form-data") && r.Method == http.MethodPost
	rc := &fasthttp.RequestCtx{}
	rc.Init2(&peer{request: r, in: in}, silent{}, true)
	rc.SetUserValue(callKey{}, c)
	if err := convert(&rc.Request, r, in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	rc.Response.Header.SetNoDefaultContentType(true)

	g.handler(rc)
	if c.encrypted && rc.Response.StatusCode() < http.StatusMultipleChoices {
		rc.Response.Header.Set("x-amz-server-side-encryption", "AES256")
	}

	out := &outgoing{ResponseWriter: w, control: in.control, stall: g.stall}
	err := answer(out, r, &rc.Response)
	g.metrics.Done(c.operation, rc.Response.StatusCode(), c.received, out.sent, time.Since(c.began))
	if err != nil {
		g.logger.Debug("an S3 client did not get its answer", "operation", c.operation, "error", err)
		panic(http.ErrAbortHandler) // the only way to tell the client that the body is not complete
	}
}

// convert makes fasthttp's request of a request. Nothing is changed: the client may have signed every byte of the header.
// fasthttp reads the header as bytes, because it looks into them again for metadata.
func convert(to *fasthttp.Request, r *http.Request, body io.Reader) error {
	var head bytes.Buffer
	fmt.Fprintf(&head, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.Method, r.RequestURI, r.Host)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		for _, value := range r.Header[name] {
			fmt.Fprintf(&head, "%s: %s\r\n", name, value)
		}
	}
	if r.ContentLength > 0 && r.Header.Get("Content-Length") == "" {
		fmt.Fprintf(&head, "Content-Length: %d\r\n", r.ContentLength)
	}
	head.WriteString("\r\n")
	if err := to.Header.Read(bufio.NewReaderSize(&head, head.Len())); err != nil {
		return fmt.Errorf("reading the header: %w", err)
	}
	if r.TLS != nil {
		to.URI().SetScheme("https")
	}
	if r.ContentLength != 0 {
		to.SetBodyStream(body, int(r.ContentLength))
	}
	return nil
}

func expects(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Expect"), "100-continue")
}

// answer writes what versitygw has answered.
func answer(out *outgoing, r *http.Request, from *fasthttp.Response) error {
	header := out.Header()
	for name, value := range from.Header.All() {
		if name := headerName(string(name)); name != "" {
			header[name] = append(header[name], string(value))
		}
	}
	if from.ConnectionClose() {
		header.Set("Connection", "close")
	}
	stream := from.BodyStream()
	if stream != nil {
		defer from.CloseBodyStream()
	}
	hasBody := r.Method != http.MethodHead && from.StatusCode() >= 200 && from.StatusCode() != http.StatusNoContent && from.StatusCode() != http.StatusNotModified
	switch {
	case !hasBody && r.Method != http.MethodHead:
		header.Del("Content-Length")
	case stream == nil && (hasBody || header.Get("Content-Length") == "" || len(from.Body()) > 0):
		header["Content-Length"] = []string{strconv.Itoa(len(from.Body()))}
	}
	out.WriteHeader(from.StatusCode())
	if !hasBody {
		return nil
	}
	if stream == nil {
		_, err := out.Write(from.Body())
		return err
	}
	_, err := io.Copy(out, stream)
	return err
}

// headerName returns a name as net/http needs it, or "" for what it decides itself.
func headerName(name string) string {
	switch canonical := http.CanonicalHeaderKey(name); canonical {
	case "Connection", "Server", "Date", "Transfer-Encoding":
		return ""
	case "Etag":
		return "ETag"
	default:
		if strings.HasPrefix(canonical, "X-Amz-") {
			return strings.ToLower(canonical) // clients show the names of metadata as they get them
		}
		return canonical
	}
}
