package auth

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

func TestStreamsEndWhenTheirTokenExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRevocations()
		ctx, release := r.Bind(t.Context(), core.Principal{TokenUID: "t", Expires: time.Now().Add(time.Hour)}, nil)
		defer release()
		time.Sleep(time.Hour - time.Second)
		if ctx.Err() != nil {
			t.Fatalf("ended before its time: %v", context.Cause(ctx))
		}
		time.Sleep(2 * time.Second)
		if context.Cause(ctx) != ErrUnknownToken {
			t.Errorf("ended by %v", context.Cause(ctx))
		}
	})
}

func TestLaggingServerStillEndsRevokedStreams(t *testing.T) {
	r := NewRevocations()
	store := state.New()
	var b state.Batch
	b.Create(&v1.Token{Metadata: &v1.Metadata{Uid: "kept", Name: "kept"}})
	if _, err := store.Apply(1, b.Transaction(time.Now())); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour)
	kept, release := r.Bind(t.Context(), core.Principal{TokenUID: "kept", Expires: later}, nil)
	defer release()
	gone, releaseGone := r.Bind(t.Context(), core.Principal{TokenUID: "gone", Expires: later}, nil)
	r.RevokeMissing(store.Snapshot())
	if kept.Err() != nil || context.Cause(gone) != ErrUnknownToken {
		t.Errorf("kept ended by %v, gone by %v", context.Cause(kept), context.Cause(gone))
	}
	releaseGone()
	if len(r.streams) != 1 {
		t.Errorf("%d tokens are still bound, want 1", len(r.streams))
	}
}
