package website

import (
	"encoding/xml"
	"net/http"

	"github.com/cloudless/cloudless/internal/spec"
)

// serveS3 passes a request to the S3 API, if its access key is of the namespace of the route. Keys of other namespaces do not
// exist for it. Requests without a key are for buckets of the default namespace that a policy opens to everybody.
func (s *Server) serveS3(w http.ResponseWriter, r *http.Request, namespace string) {
	if s.o.S3 == nil {
		refuseS3(w, http.StatusServiceUnavailable, "ServiceUnavailable", "This server has no S3 API: try again.")
		return
	}
	id := s.o.Claims(r)
	if id == "" && namespace != spec.DefaultNamespace {
		refuseS3(w, http.StatusForbidden, "AccessDenied", "The request has no signature.")
		return
	}
	if id != "" {
		of, err := s.o.KeyNamespace(r.Context(), id)
		if err != nil {
			refuseS3(w, http.StatusServiceUnavailable, "ServiceUnavailable", "The access key cannot be looked up now: try again.")
			return
		}
		if of != "" && of != namespace {
			refuseS3(w, http.StatusForbidden, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.")
			return
		}
	}
	secured(r)
	s.o.S3.ServeHTTP(w, r)
}

// refuseS3 is an error as S3 clients read it.
func refuseS3(w http.ResponseWriter, status int, code, message string) {
	body, err := xml.Marshal(struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
		Message string
	}{Code: code, Message: message})
	if err != nil { // two strings can always be written
		body = nil
	}
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(xml.Header + string(body))) // a client that is gone needs no answer
}
