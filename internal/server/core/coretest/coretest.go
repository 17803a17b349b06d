// Package coretest checks the errors with which calls are refused. Only tests use it, and it knows no noun.
package coretest

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// WantCode checks the code of a refusal, and that its message contains these words.
func WantCode(t testing.TB, err error, code codes.Code, words ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("answered with %v, want %v", err, code)
		return
	}
	for _, w := range words {
		if !strings.Contains(status.Convert(err).Message(), w) {
			t.Errorf("the refusal %q does not say %q", status.Convert(err).Message(), w)
		}
	}
}
