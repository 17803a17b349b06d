package command

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cloudless/cloudless/client"
)

// An error that a retry cannot change has an exit code that tells service managers not to
// restart.
func TestExitCodeOfPermanentErrors(t *testing.T) {
	removed := errors.New("this server was removed")
	err := fmt.Errorf("serve: %w", ForGood(removed))
	if code := exitCode(err); code != 78 || !errors.Is(err, removed) || client.Message(err) != "serve: this server was removed" {
		t.Errorf("%v ends with %d", err, code)
	}
}
