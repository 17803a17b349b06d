// Package client is a small client of the S3 API for tests: it sends what it is told to once, without retries, so that
// its callers see every answer and every failure as it is.
package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// Region is that of all requests.
const Region = "us-east-1"

// Client talks to one endpoint. Its methods may be called at once.
type Client struct {
	url         string
	credentials aws.Credentials
	http        *http.Client
	signer      *v4.Signer
}

// New returns a client of the endpoint at a URL. It keeps so many idle connections. It trusts whoever answers: the servers
// of tests are on the same machine, with certificates made for the run.
func New(url, key, secret string, connections int) *Client {
	return &Client{
		url: url, credentials: aws.Credentials{AccessKeyID: key, SecretAccessKey: secret},
		signer: v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }),
		http: &http.Client{Transport: &http.Transport{
			MaxIdleConnsPerHost: connections, DisableCompression: true,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			WriteBufferSize: 128 << 10, ReadBufferSize: 128 << 10,
		}},
	}
}

// Close ends its connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Refusal is an answer that is no success.
type Refusal struct {
	Status        int
	Code, Message string
}

func (r *Refusal) Error() string { return fmt.Sprintf("%d %s: %s", r.Status, r.Code, r.Message) }

// Request is what is sent.
type Request struct {
	Method string
	// Path begins with the bucket, without a slash before it.
	Path   string
	Query  url.Values
	Header map[string]string
	Body   []byte
}

// Do sends a signed request. The caller closes the body of the answer, whose status is a success.
func (c *Client) Do(ctx context.Context, r Request) (*http.Response, error) {
	target := c.url + "/" + r.Path
	if len(r.Query) > 0 {
		target += "?" + r.Query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, r.Method, target, bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	for name, value := range r.Header {
		request.Header.Set(name, value)
	}
	digest := sha256.Sum256(r.Body)
	hash := hex.EncodeToString(digest[:])
	request.Header.Set("X-Amz-Content-Sha256", hash)
	if err := c.signer.SignHTTP(ctx, c.credentials, request, hash, "s3", Region, time.Now()); err != nil {
		return nil, err
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode >= 300 {
		defer answer.Body.Close()
		return nil, fmt.Errorf("%s %s: %w", r.Method, r.Path, refusal(answer))
	}
	return answer, nil
}

func refusal(answer *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 4096))
	r := &Refusal{Status: answer.StatusCode}
	if xml.Unmarshal(text, r) != nil || r.Code == "" {
		r.Code, r.Message = http.StatusText(answer.StatusCode), strings.TrimSpace(string(text))
	}
	return r
}

// finish sends a request and reads the answer to its end.
func (c *Client) finish(ctx context.Context, r Request) (http.Header, []byte, error) {
	answer, err := c.Do(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer.Header, body, err
}

// Put stores an object, and returns its ETag.
func (c *Client) Put(ctx context.Context, bucket, key string, body []byte) (etag string, err error) {
	header, _, err := c.finish(ctx, Request{Method: http.MethodPut, Path: bucket + "/" + key, Body: body})
	return unquote(header.Get("Etag")), err
}

// Get returns an object.
func (c *Client) Get(ctx context.Context, bucket, key string) ([]byte, error) {
	_, body, err := c.finish(ctx, Request{Method: http.MethodGet, Path: bucket + "/" + key})
	return body, err
}

// GetRange returns a part of an object, from one byte through another.
func (c *Client) GetRange(ctx context.Context, bucket, key string, first, last int64) ([]byte, error) {
	_, body, err := c.finish(ctx, Request{
		Method: http.MethodGet, Path: bucket + "/" + key, Header: map[string]string{"Range": fmt.Sprintf("bytes=%d-%d", first, last)},
	})
	return body, err
}

// Head returns the ETag and the size of an object.
func (c *Client) Head(ctx context.Context, bucket, key string) (etag string, size int64, err error) {
	header, _, err := c.finish(ctx, Request{Method: http.MethodHead, Path: bucket + "/" + key})
	if err != nil {
		return "", 0, err
	}
	size, err = strconv.ParseInt(header.Get("Content-Length"), 10, 64)
	return unquote(header.Get("Etag")), size, err
}

// Delete deletes an object.
func (c *Client) Delete(ctx context.Context, bucket, key string) error {
	_, _, err := c.finish(ctx, Request{Method: http.MethodDelete, Path: bucket + "/" + key})
	return err
}

// Page is a page of a listing.
type Page struct {
	Contents []Object
	// Next is where the next page begins; it is empty after the last one.
	Next string `xml:"NextContinuationToken"`
}

// Object is what a listing says of an object.
type Object struct {
	Key  string
	ETag string
	Size int64
}

// List returns the page of a listing that begins where another one said, or after a key if that is empty.
func (c *Client) List(ctx context.Context, bucket, next, after string, most int) (page Page, err error) {
	query := url.Values{"list-type": {"2"}, "max-keys": {strconv.Itoa(most)}}
	if next != "" {
		query.Set("continuation-token", next)
	} else if after != "" {
		query.Set("start-after", after)
	}
	_, body, err := c.finish(ctx, Request{Method: http.MethodGet, Path: bucket, Query: query})
	if err != nil {
		return page, err
	}
	if err := xml.Unmarshal(body, &page); err != nil {
		return page, fmt.Errorf("read a page of a listing: %w", err)
	}
	for i := range page.Contents {
		page.Contents[i].ETag = unquote(page.Contents[i].ETag)
	}
	return page, nil
}

func unquote(etag string) string { return strings.Trim(etag, `"`) }
