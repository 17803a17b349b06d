package image

import (
	"net/http"
	"strings"
	"testing"
)

// Users see the registry's reason, not the JSON around it.
func TestFailureShowsTheRegistrysReason(t *testing.T) {
	for answer, want := range map[string]string{
		`{"errors":[{"code":"DENIED","message":"eve may not push"}],"message":"eve may not push"}`: "the registry answers 403: eve may not push",
		`{"errors":[{"code":"DENIED"}]}`:  "the registry answers 403: DENIED",
		"<html>\n<body>go away":           "the registry answers 403: <html>",
		`{"errors":[]}`:                   `the registry answers 403: {"errors":[]}`,
		" ":                               "the registry answers 403: without a reason",
		`{"errors":[{"message":"a\nb"}]}`: "the registry answers 403: a",
		strings.Repeat("x", 501):          "the registry answers 403: " + strings.Repeat("x", 500),
	} {
		if err := failure(http.StatusForbidden, []byte(answer)); err == nil || err.Error() != want {
			t.Errorf("%q is reported as %v, want %s", answer, err, want)
		}
	}
}
