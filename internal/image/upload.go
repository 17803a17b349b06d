package image

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// uploader sends blobs and manifests to one repository of a registry.
type uploader struct {
	http  http.RoundTripper
	to    Name
	meter *meter
	taken atomic.Int64 // blobs that were sent completely
}

const (
	maxAttempts  = 6  // without progress
	maxLost      = 20 // uploads of one blob that the registry forgets, which takes about a minute
	firstPause   = 200 * time.Millisecond
	longestPause = 5 * time.Second
	// cancelTime bounds how long an interrupted push takes to clean up.
	cancelTime = 5 * time.Second
	// beginTime bounds how long the registry may take to begin an upload.
	beginTime = 15 * time.Second
)

// refusal is an answer that a retry will not change.
type refusal struct {
	status int
	code   string // of the OCI specification, if the registry gave one
	text   string
}

func (r *refusal) Error() string { return r.text }

// Forbidden reports whether a push failed because the registry does not let the caller push this image.
func Forbidden(err error) bool {
	r, ok := errors.AsType[*refusal](err)
	return ok && r.status == http.StatusForbidden
}

// lostError says that the registry has forgotten an upload. In a cluster, another server leads now: it knows nothing of
// the upload, and the next attempt begins there.
type lostError struct{ status int }

func (l *lostError) Error() string {
	return fmt.Sprintf("the registry does not know the upload any more: it answers %d", l.status)
}

func (u *uploader) url(rest string) *url.URL {
	return &url.URL{Scheme: "https", Host: u.to.Registry, Path: "/v2/" + u.to.Repository + rest}
}

// do makes one request and returns the answer's header. It reads and closes the body.
func (u *uploader) do(ctx context.Context, method string, to *url.URL, body io.Reader, header ...string) (int, http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, method, to.String(), body)
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("User-Agent", "cloudless")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := u.http.RoundTrip(req)
	if err != nil {
		if ctx.Err() != nil {
			return 0, nil, ctx.Err()
		}
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return 0, nil, err
	}
	return resp.StatusCode, resp.Header, failure(resp.StatusCode, answer)
}

// failure is nil for the answers that a push expects.
func failure(status int, answer []byte) error {
	switch {
	case status < 300, status == http.StatusNotFound:
		return nil
	case status >= 500, status == http.StatusTooManyRequests, status == http.StatusRequestTimeout:
		_, why := explain(answer)
		return fmt.Errorf("the registry answers %d: %s", status, why)
	}
	code, why := explain(answer)
	return &refusal{status: status, code: code, text: fmt.Sprintf("the registry answers %d: %s", status, why)}
}

// explain is why a registry refused something: the code and the message of an OCI error, or else the first line of the
// answer.
func explain(answer []byte) (code, why string) {
	var body struct {
		Errors []struct{ Code, Message string }
	}
	why = string(answer)
	if json.Unmarshal(answer, &body) == nil && len(body.Errors) > 0 {
		code = body.Errors[0].Code
		why = cmp.Or(body.Errors[0].Message, code)
	}
	const longest = 500
	why, _, _ = strings.Cut(strings.TrimSpace(why), "\n")
	if why == "" {
		return code, "without a reason"
	}
	return code, strings.ToValidUTF8(why[:min(len(why), longest)], "")
}

// persist calls try until it succeeds, is refused, or has failed often without
// progress.
func persist(ctx context.Context, progress func() int64, try func() error) error {
	last := progress()
	for attempt := 1; ; attempt++ {
		err := try()
		if _, refused := errors.AsType[*refusal](err); err == nil || refused || ctx.Err() != nil {
			return err
		}
		if now := progress(); now > last {
			attempt, last = 1, now
		}
		limit := maxAttempts
		if _, lost := errors.AsType[*lostError](err); lost {
			limit = maxLost
		}
		if attempt >= limit {
			return err
		}
		pause := min(firstPause<<(attempt-1), longestPause)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
	}
}

// blob sends a blob unless it is there. What the registry has received of it
// before a connection broke is not sent again.
func (u *uploader) blob(ctx context.Context, b blob) error {
	up := upload{uploader: u, blob: b, sent: &sent{}}
	defer up.cancel(ctx)
	return persist(ctx, func() int64 { return up.offset }, func() error { return up.try(ctx) })
}

// upload is one blob in flight.
type upload struct {
	*uploader
	blob   blob
	sent   *sent
	at     *url.URL // where to resume; nil before it has begun and after its end
	offset int64    // what the registry has
}

func (u *upload) try(ctx context.Context) error {
	if u.at == nil {
		there, err := u.isThere(ctx)
		if there || err != nil {
			return err
		}
		if err := u.begin(ctx); err != nil {
			return err
		}
	} else if err := u.resume(ctx); err != nil {
		return err
	}
	if err := u.send(ctx); err != nil {
		return err
	}
	return u.finish(ctx)
}

func (u *upload) isThere(ctx context.Context) (bool, error) {
	status, _, err := u.do(ctx, http.MethodHead, u.url("/blobs/"+u.blob.digest), nil)
	if err != nil || status != http.StatusOK {
		return false, err
	}
	u.meter.add(u.sent, u.blob.size-u.sent.bytes)
	return true, nil
}

// begin cannot be interrupted: an upload with an unknown location could not be cancelled.
func (u *upload) begin(ctx context.Context) error {
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), beginTime)
	defer cancel()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	status, header, err := u.do(whole, http.MethodPost, u.url("/blobs/uploads/"), nil)
	if err != nil {
		return err
	}
	if status != http.StatusAccepted {
		return &refusal{status: status, text: fmt.Sprintf("the registry does not take uploads: it answers %d", status)}
	}
	return u.moveOn(u.url("/blobs/uploads/"), header, 0)
}

// resume asks how far the upload has come, and starts over if it cannot resume.
func (u *upload) resume(ctx context.Context) error {
	status, header, err := u.do(ctx, http.MethodGet, u.at, nil)
	_, refused := errors.AsType[*refusal](err)
	if err != nil && !refused {
		return err
	}
	_, last, _ := strings.Cut(header.Get("Range"), "-")
	end, parseErr := strconv.ParseInt(last, 10, 64)
	// A range of 0-0 may mean nothing or one byte.
	if status == http.StatusNoContent && parseErr == nil && end > 0 && end < u.blob.size {
		return u.moveOn(u.at, header, end+1)
	}
	u.cancel(ctx)
	u.restart()
	return u.begin(ctx)
}

// restart starts the upload over.
func (u *upload) restart() {
	u.meter.takeBack(u.sent)
	u.sent, u.at, u.offset = &sent{}, nil, 0
}

func (u *upload) moveOn(from *url.URL, header http.Header, offset int64) error {
	next, err := from.Parse(header.Get("Location"))
	if err != nil || header.Get("Location") == "" {
		return &refusal{text: "the registry does not say where the upload goes on"}
	}
	u.at, u.offset = next, offset
	u.meter.set(u.sent, offset)
	return nil
}

// send sends the rest of the blob.
func (u *upload) send(ctx context.Context) error {
	content, err := u.blob.open()
	if err != nil {
		return &refusal{text: err.Error()}
	}
	defer content.Close()
	if _, err := io.CopyN(io.Discard, content, u.offset); err != nil {
		return &refusal{text: fmt.Sprintf("read %s: %v", u.blob.digest, err)}
	}
	body := &countingBody{content: content, meter: u.meter, sent: u.sent}
	status, header, err := u.do(ctx, http.MethodPatch, u.at, body, "Content-Type", "application/octet-stream")
	if err := body.stop(); err != nil {
		return &refusal{text: err.Error()} // our own file cannot be read
	}
	if r, refused := errors.AsType[*refusal](err); refused && r.status == http.StatusRequestedRangeNotSatisfiable {
		return errors.New(r.text) // the next attempt asks where to resume
	}
	if err != nil {
		return err
	}
	if status != http.StatusAccepted && status != http.StatusNoContent {
		return &lostError{status}
	}
	return u.moveOn(u.at, header, u.blob.size)
}

func (u *upload) finish(ctx context.Context) error {
	end := *u.at
	query := end.Query()
	query.Set("digest", u.blob.digest)
	end.RawQuery = query.Encode()
	status, _, err := u.do(ctx, http.MethodPut, &end, nil)
	if err != nil {
		return err
	}
	if status != http.StatusCreated && status != http.StatusNoContent {
		u.restart()
		return &lostError{status}
	}
	u.at = nil
	u.taken.Add(1)
	return nil
}

// cancel removes an unfinished upload from the registry, even after ctx has ended.
func (u *upload) cancel(ctx context.Context) {
	if u.at == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTime)
	defer cancel()
	defer func() { u.at = nil }()
	// Only a client that knows the offset may end it, and what was sent last may still arrive in between.
	for range maxAttempts {
		status, header, err := u.do(ctx, http.MethodGet, u.at, nil)
		if err != nil {
			continue
		}
		at, err := u.at.Parse(header.Get("Location"))
		if err != nil || status != http.StatusNoContent {
			return // it is gone
		}
		if _, _, err := u.do(ctx, http.MethodDelete, at, nil); err == nil {
			return
		}
	}
	// The registry, if it is back, removes the upload in time.
}

// manifest sends a manifest under a tag or its digest.
func (u *uploader) manifest(ctx context.Context, m manifest, reference string) error {
	return persist(ctx, func() int64 { return 0 }, func() error {
		status, _, err := u.do(ctx, http.MethodPut, u.url("/manifests/"+reference), bytes.NewReader(m.raw), "Content-Type", m.mediaType)
		if err == nil && status != http.StatusCreated {
			err = &refusal{status: status, text: fmt.Sprintf("the registry does not take the manifest: it answers %d", status)}
		}
		return err
	})
}
