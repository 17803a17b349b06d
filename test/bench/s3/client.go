package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/cloudless/cloudless/test/s3/client"
)

// region is that of all requests.
const region = client.Region

// Endpoint is a server that speaks S3.
type Endpoint struct {
	Name, URL, Key, Secret string

	once   sync.Once
	client *client.Client
}

// connected returns the endpoint's client. Its connections stay open.
func (e *Endpoint) connected() *client.Client {
	e.once.Do(func() { e.client = client.New(e.URL, e.Key, e.Secret, 4*Clients) })
	return e.client
}

// Close ends its connections.
func (e *Endpoint) Close() { e.connected().Close() }

// CreateBucket makes a bucket if there is none.
func (e *Endpoint) CreateBucket(ctx context.Context, bucket string) error {
	answer, err := e.connected().Do(ctx, client.Request{Method: http.MethodPut, Path: bucket})
	if refused, ok := errors.AsType[*client.Refusal](err); ok && refused.Status == http.StatusConflict {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return errors.Join(err, answer.Body.Close())
}

// Put stores an object.
func (e *Endpoint) Put(ctx context.Context, bucket, key string, body []byte) error {
	_, err := e.connected().Put(ctx, bucket, key, body)
	return err
}

// Get reads an object, and fails unless it has a size.
func (e *Endpoint) Get(ctx context.Context, bucket, key string, size int) error {
	answer, err := e.connected().Do(ctx, client.Request{Method: http.MethodGet, Path: bucket + "/" + key})
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

// ListAll lists a bucket in pages, and returns how many keys it has.
func (e *Endpoint) ListAll(ctx context.Context, bucket string) (keys, pages int, err error) {
	for next := ""; ; pages++ {
		page, err := e.connected().List(ctx, bucket, next, "", 1000)
		if err != nil {
			return keys, pages, err
		}
		keys += len(page.Contents)
		if next = page.Next; next == "" {
			return keys, pages + 1, nil
		}
	}
}
