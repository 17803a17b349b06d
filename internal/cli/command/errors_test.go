package command

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cloudless/cloudless/client"
)

// What will end in the same way every time says so to whoever would start it again.
func TestExitCodeOfWhatEndsForGood(t *testing.T) {
	removed := errors.New("this server was removed")
	err := fmt.Errorf("serve: %w", ForGood(removed))
	if code := exitCode(err); code != 78 || !errors.Is(err, removed) || client.Message(err) != "serve: this server was removed" {
		t.Errorf("%v ends with %d", err, code)
	}
}
