package s3

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
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// region is that of all requests.
const region = "us-east-1"

// Endpoint is a server that speaks S3.
type Endpoint struct {
	Name, URL, Key, Secret string

	once   sync.Once
	http   *http.Client
	signer *v4.Signer
}

// client returns the endpoint's client. Its connections stay open.
func (e *Endpoint) client() *http.Client {
	e.once.Do(func() {
		e.signer = v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
		e.http = &http.Client{Transport: &http.Transport{
			MaxIdleConnsPerHost: 4 * Clients, DisableCompression: true,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // on this machine, with keys made for this run
			WriteBufferSize: 128 << 10, ReadBufferSize: 128 << 10,
		}}
	})
	return e.http
}

// Close ends its connections.
func (e *Endpoint) Close() {
	if e.http != nil {
		e.http.CloseIdleConnections()
	}
}

// do sends a signed request. The caller closes the body of the answer, whose status is a success.
func (e *Endpoint) do(ctx context.Context, method, path string, query url.Values, body []byte) (*http.Response, error) {
	client := e.client()
	target := e.URL + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256(body)
	hash := hex.EncodeToString(digest[:])
	request.Header.Set("X-Amz-Content-Sha256", hash)
	credentials := aws.Credentials{AccessKeyID: e.Key, SecretAccessKey: e.Secret}
	if err := e.signer.SignHTTP(ctx, credentials, request, hash, "s3", region, time.Now()); err != nil {
		return nil, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode >= 300 {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1000))
		_ = answer.Body.Close()
		return answer, fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, text)
	}
	return answer, nil
}

// CreateBucket makes a bucket if there is none.
func (e *Endpoint) CreateBucket(ctx context.Context, bucket string) error {
	answer, err := e.do(ctx, http.MethodPut, "/"+bucket, nil, nil)
	if answer != nil && answer.StatusCode == http.StatusConflict {
		return nil
	}
	if err != nil {
		return err
	}
	return drain(answer)
}

// Put stores an object.
func (e *Endpoint) Put(ctx context.Context, bucket, key string, body []byte) error {
	answer, err := e.do(ctx, http.MethodPut, "/"+bucket+"/"+key, nil, body)
	if err != nil {
		return err
	}
	return drain(answer)
}

// Get reads an object, and fails unless it has a size.
func (e *Endpoint) Get(ctx context.Context, bucket, key string, size int) error {
	answer, err := e.do(ctx, http.MethodGet, "/"+bucket+"/"+key, nil, nil)
	if err != nil {
		return err
	}
	read, err := io.Copy(io.Discard, answer.Body)
	if closeErr := answer.Body.Close(); err == nil {
		err = closeErr
	}
	if err == nil && int(read) != size {
		err = fmt.Errorf("%s has %d bytes and not %d", key, read, size)
	}
	return err
}

func drain(answer *http.Response) error {
	_, err := io.Copy(io.Discard, answer.Body)
	if closeErr := answer.Body.Close(); err == nil {
		err = closeErr
	}
	return err
}

// listing is what of an answer to a listing matters.
type listing struct {
	Contents []struct{ Key string }
	Next     string `xml:"NextContinuationToken"`
}

// ListAll lists a bucket in pages, and returns how many keys it has.
func (e *Endpoint) ListAll(ctx context.Context, bucket string) (keys, pages int, err error) {
	query := url.Values{"list-type": {"2"}, "max-keys": {"1000"}}
	for {
		answer, err := e.do(ctx, http.MethodGet, "/"+bucket, query, nil)
		if err != nil {
			return keys, pages, err
		}
		var page listing
		err = xml.NewDecoder(answer.Body).Decode(&page)
		_ = answer.Body.Close()
		if err != nil {
			return keys, pages, fmt.Errorf("reading a page of a listing: %w", err)
		}
		keys += len(page.Contents)
		pages++
		if page.Next == "" {
			return keys, pages, nil
		}
		query.Set("continuation-token", page.Next)
	}
}
