package s3

import (
	"io"
	"net/http"
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
	c.escaped = r.URL.Query().Get("encoding-type") == "url"
	c.form = strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/form-data") && r.Method == http.MethodPost
	rc := &fasthttp.RequestCtx{}
	rc.Init2(&peer{request: r, in: in}, silent{}, true)
	rc.SetUserValue(callKey{}, c)
	convert(&rc.Request, r, in)
	rc.Response.Header.SetNoDefaultContentType(true)

	g.handler(rc)

	out := &outgoing{ResponseWriter: w, control: in.control, stall: g.stall}
	err := answer(out, r, &rc.Response)
	g.metrics.Done(c.operation, rc.Response.StatusCode(), c.received, out.sent, time.Since(c.began))
	if err != nil {
		g.logger.Debug("an S3 client did not get its answer", "operation", c.operation, "error", err)
		panic(http.ErrAbortHandler) // the only way to tell the client that the body is not complete
	}
}

// convert makes fasthttp's request of a request. Nothing is changed: the client may have signed every byte of the header.
func convert(to *fasthttp.Request, r *http.Request, body io.Reader) {
	to.Header.SetMethod(r.Method)
	to.Header.SetProtocol(r.Proto)
	to.SetRequestURI(r.RequestURI)
	for name, values := range r.Header {
		for _, value := range values {
			to.Header.Add(name, value)
		}
	}
	to.Header.SetHost(r.Host)
	if r.TLS != nil {
		to.URI().SetScheme("https")
	}
	if r.ContentLength != 0 {
		to.SetBodyStream(body, int(r.ContentLength))
	}
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
		return canonical
	}
}
