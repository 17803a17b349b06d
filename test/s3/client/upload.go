package client

import (
	"context"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
)

// Upload is an upload in parts.
type Upload struct {
	client          *Client
	bucket, key, id string
	parts           []part
}

// part is a part as an order to complete an upload names it.
type part struct {
	Number int    `xml:"PartNumber"`
	ETag   string `xml:"ETag"`
}

// Begin begins an upload in parts.
func (c *Client) Begin(ctx context.Context, bucket, key string) (*Upload, error) {
	_, body, err := c.finish(ctx, Request{Method: http.MethodPost, Path: bucket + "/" + key, Query: url.Values{"uploads": {""}}})
	if err != nil {
		return nil, err
	}
	var begun struct {
		ID string `xml:"UploadId"`
	}
	if err := xml.Unmarshal(body, &begun); err != nil || begun.ID == "" {
		return nil, fmt.Errorf("the answer to the beginning of an upload names no upload: %q (%v)", body, err)
	}
	return &Upload{client: c, bucket: bucket, key: key, id: begun.ID}, nil
}

// By returns the upload as another client continues it. It shares the parts that were put.
func (u *Upload) By(c *Client) *Upload {
	other := *u
	other.client = c
	return &other
}

// Put stores the next part. It may be repeated if it fails.
func (u *Upload) Put(ctx context.Context, body []byte) error {
	number := len(u.parts) + 1
	header, _, err := u.client.finish(ctx, Request{
		Method: http.MethodPut, Path: u.bucket + "/" + u.key, Body: body,
		Query: url.Values{"partNumber": {strconv.Itoa(number)}, "uploadId": {u.id}},
	})
	if err != nil {
		return err
	}
	u.parts = append(u.parts, part{number, header.Get("Etag")})
	return nil
}

// Complete makes the parts an object, and returns its ETag.
func (u *Upload) Complete(ctx context.Context) (etag string, err error) {
	order, err := xml.Marshal(struct {
		XMLName xml.Name `xml:"CompleteMultipartUpload"`
		Parts   []part   `xml:"Part"`
	}{Parts: u.parts})
	if err != nil {
		return "", err
	}
	_, body, err := u.client.finish(ctx, Request{
		Method: http.MethodPost, Path: u.bucket + "/" + u.key, Query: url.Values{"uploadId": {u.id}}, Body: order,
	})
	if err != nil {
		return "", err
	}
	var done struct {
		XMLName xml.Name
		ETag    string
		Code    string
		Message string
	}
	if err := xml.Unmarshal(body, &done); err != nil {
		return "", fmt.Errorf("read the answer to the completion of an upload: %w", err)
	}
	if done.XMLName.Local == "Error" { // with the status of a success, as S3 does
		return "", &Refusal{Status: http.StatusInternalServerError, Code: done.Code, Message: done.Message}
	}
	return unquote(done.ETag), nil
}

// Abort gives the upload up.
func (u *Upload) Abort(ctx context.Context) error {
	_, _, err := u.client.finish(ctx, Request{Method: http.MethodDelete, Path: u.bucket + "/" + u.key, Query: url.Values{"uploadId": {u.id}}})
	return err
}
