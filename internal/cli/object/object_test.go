package object

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/internal/cli/command"
)

func newWork(notes *bytes.Buffer) *work {
	return &work{Env: &command.Env{Stderr: notes}, meter: newMeter(notes)}
}

func TestACommandSaysSoonWhyItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var notes bytes.Buffer
		began, told := time.Now(), time.Duration(0)
		why := "node one is not connected"
		err := newWork(&notes).again(t.Context(), nothing, func() error {
			if notes.Len() > 0 && told == 0 {
				told = time.Since(began)
			}
			if time.Since(began) > 30*time.Second {
				why = "node one is full"
			}
			return status.Error(codes.Unavailable, why)
		})
		if status.Code(err) != codes.Unavailable || time.Since(began) < patience || time.Since(began) > patience+5*time.Second {
			t.Errorf("it ended after %s with %v", time.Since(began), err)
		}
		want := "Trying again for up to 60s: node one is not connected\nTrying again for up to 60s: node one is full\n"
		if notes.String() != want || told == 0 || told > 4*time.Second {
			t.Errorf("after %s it said:\n%s", told, &notes)
		}
	})
}

func TestAShortFailureIsNotMentioned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var notes bytes.Buffer
		attempts := 0
		err := newWork(&notes).again(t.Context(), nothing, func() error {
			if attempts++; attempts < 4 {
				return status.Error(codes.Unavailable, "the server restarts")
			}
			return nil
		})
		if err != nil || notes.Len() > 0 {
			t.Errorf("%v, it said %q", err, &notes)
		}
	})
}

func TestWhatWillNotGetBetterIsNotTriedAgain(t *testing.T) {
	attempts := 0
	err := newWork(new(bytes.Buffer)).again(t.Context(), nothing, func() error {
		attempts++
		return status.Error(codes.FailedPrecondition, "no node stores data")
	})
	if attempts != 1 || status.Code(err) != codes.FailedPrecondition {
		t.Errorf("%d attempts, %v", attempts, err)
	}
}

func TestAnInterruptEndsTheWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, interrupt := context.WithTimeoutCause(t.Context(), 5*time.Second, context.Canceled)
		defer interrupt()
		err := newWork(new(bytes.Buffer)).again(ctx, nothing, func() error { return status.Error(codes.Unavailable, "not now") })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// Names of files have 255 bytes, whatever is added to them while they are incomplete.
func TestTheNameOfAnIncompleteFileIsNotTooLong(t *testing.T) {
	for _, length := range []int{1, 100, 216, 217, 255} {
		name := strings.Repeat("n", length)
		part := partName("folder/"+name, strings.Repeat("e", 32))
		if got := strings.TrimPrefix(part, "folder/"); len(got) > longestName || got == part || !strings.HasSuffix(got, "e.part") {
			t.Errorf("a file with a name of %d bytes is %s while it is incomplete", length, part)
		}
	}
	if partName("a", "1") != "a.1.part" {
		t.Errorf("a short name became %s", partName("a", "1"))
	}
}
