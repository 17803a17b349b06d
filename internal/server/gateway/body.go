package gateway

import (
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
)

// body is the body of a request. The gateway library keeps only the text of a decoding
// error, so the violations are remembered here.
type body struct {
	io.ReadCloser
	method, path string
	wrong        *spec.Error
}

func withBody(r *http.Request) *http.Request {
	r = r.WithContext(r.Context()) // a copy, which may be changed
	r.Body = &body{ReadCloser: r.Body, method: r.Method, path: r.URL.Path}
	return r
}

// bodies reads bodies for the gateway, and names the field that is wrong.
type bodies struct{ *runtime.HTTPBodyMarshaler }

func (b bodies) NewDecoder(from io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(target any) error {
		data, err := io.ReadAll(from)
		if err != nil {
			return err
		}
		if len(data) == 0 {
			return io.EOF // an empty body may be enough
		}
		err = b.Unmarshal(data, target)
		of, ok := from.(*body)
		if !ok {
			return err
		}
		if err != nil || !json.Valid(data) { // the library would read only the first of several values
			if of.wrong = explainBody(data, target); of.wrong == nil && holdsSecret(target) {
				of.wrong = &spec.Error{Violations: []spec.Violation{{Message: "is not a valid request in JSON"}}} // the library's error may quote the value
			}
		} else {
			of.wrong = of.another(target)
		}
		if of.wrong != nil {
			return of.wrong
		}
		return err
	})
}

// explainBody says which part of a body cannot be decoded into a target, which is a message
// or a pointer to one.
func explainBody(data []byte, target any) *spec.Error {
	message, ok := target.(proto.Message)
	if place := reflect.TypeOf(target); !ok && place.Kind() == reflect.Pointer && place.Elem().Kind() == reflect.Pointer {
		message, ok = reflect.New(place.Elem().Elem()).Interface().(proto.Message)
	}
	if !ok {
		return nil
	}
	return spec.ExplainJSON(data, message)
}

// holdsSecret reports whether a request carries the value of a secret.
func holdsSecret(target any) bool {
	switch target.(type) {
	case *v1.SetSecretRequest, **v1.SetSecretRequest:
		return true
	}
	return false
}

// another refuses a body that names another object than the path, which the gateway library
// would ignore.
func (b *body) another(target any) *spec.Error {
	place := reflect.ValueOf(target)
	if b.method != http.MethodPut || place.Kind() != reflect.Pointer || place.Elem().Kind() != reflect.Pointer {
		return nil
	}
	object, ok := place.Elem().Interface().(interface{ GetMetadata() *v1.Metadata })
	if !ok {
		return nil
	}
	parts := strings.Split(strings.TrimPrefix(b.path, "/v1/namespaces/"), "/")
	said := object.GetMetadata()
	for _, one := range []struct{ field, said, path string }{
		{"metadata.name", said.GetName(), parts[len(parts)-1]},
		{"metadata.namespace", said.GetNamespace(), parts[0]},
	} {
		if one.said != "" && one.said != one.path {
			return &spec.Error{Violations: []spec.Violation{{Field: one.field, Message: "is another one than in the path, where it is " + one.path}}}
		}
	}
	return nil
}

// wrongBody returns the violations of the request's body, or else the error itself.
func wrongBody(r *http.Request, err error) error {
	if b, ok := r.Body.(*body); ok && b.wrong != nil {
		return core.StatusOf(b.wrong)
	}
	return err
}
