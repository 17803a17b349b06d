package s3

import (
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// Plain is the floor: a server that keeps each object in a file. It checks signatures and digests as S3 demands, and a put
// is durable when it is answered. It does nothing else.
type Plain struct {
	Dir, Key, Secret string
}

// ServeHTTP implements http.Handler.
func (p *Plain) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := p.verify(r); err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	path := filepath.Join(p.Dir, url.PathEscape(r.URL.Path))
	var err error
	switch r.Method {
	case http.MethodPut:
		var etag string
		etag, err = put(path, r)
		w.Header().Set("ETag", etag)
	case http.MethodGet:
		err = get(w, path)
	default:
		err = errors.New("only objects are put and got here")
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
	}
}

// verify signs the request again, and compares.
func (p *Plain) verify(r *http.Request) error {
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil {
		return err
	}
	again := &http.Request{
		Method: r.Method, Host: r.Host, ContentLength: r.ContentLength, Header: http.Header{}, URL: &url.URL{
			Scheme: "https", Host: r.Host, Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery,
		},
	}
	digest := r.Header.Get("X-Amz-Content-Sha256")
	again.Header.Set("X-Amz-Content-Sha256", digest)
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	credentials := aws.Credentials{AccessKeyID: p.Key, SecretAccessKey: p.Secret}
	if err := signer.SignHTTP(r.Context(), credentials, again, digest, "s3", region, at); err != nil {
		return err
	}
	if !hmac.Equal([]byte(again.Header.Get("Authorization")), []byte(r.Header.Get("Authorization"))) {
		return errors.New("the signature is wrong")
	}
	return nil
}

// put writes, checks, syncs and renames a file, and returns its MD5.
func put(path string, r *http.Request) (etag string, err error) {
	file, err := os.CreateTemp(filepath.Dir(path), "new-")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	sum, payload := md5.New(), sha256.New()
	_, err = io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(file, sum, payload)}, r.Body, make([]byte, 256<<10))
	if err == nil {
		err = matches(payload, r.Header.Get("X-Amz-Content-Sha256"))
	}
	if err == nil {
		err = file.Sync()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	return strconv.Quote(hex.EncodeToString(sum.Sum(nil))), err
}

func matches(payload hash.Hash, digest string) error {
	want, err := hex.DecodeString(digest)
	if err == nil && subtle.ConstantTimeCompare(want, payload.Sum(nil)) != 1 {
		err = errors.New("the content has another digest")
	}
	return err
}

func get(w http.ResponseWriter, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Length", fmt.Sprint(info.Size()))
	_, _ = io.CopyBuffer(struct{ io.Writer }{w}, file, make([]byte, 256<<10)) // the client may have gone
	return nil
}
