// Package objecttest has what tests of the object store's users need: names that are applied directly, without Raft, and
// nodes in memory whose faults a test decides. Only tests use it.
package objecttest

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object/names"
)

// ErrLost is the error of a proposal whose outcome its proposer does not learn.
var ErrLost = errors.New("the connection was lost while a proposal was going on")

// Names are the real names, and every proposal is applied at once.
type Names struct {
	Store *names.Names

	mu    sync.Mutex
	index uint64
	// before decides about the next proposals; nil lets them pass.
	before func(*objectv1.Entry) (apply bool, err error)
}

// NewNames opens names in a folder of the test, and closes them at its end.
func NewNames(t testing.TB) *Names {
	t.Helper()
	store, err := names.Open(names.Options{Dir: filepath.Join(t.TempDir(), "names"), Logger: slog.New(slog.DiscardHandler), Cache: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Errorf("closing the names: %v", err)
		}
	})
	return &Names{Store: store}
}

// Before decides about each proposal from now on: whether it is applied, and which error its proposer gets.
func (n *Names) Before(decide func(*objectv1.Entry) (apply bool, err error)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.before = decide
}

// Propose implements object.Names.
func (n *Names) Propose(ctx context.Context, entry *objectv1.Entry) (*objectv1.Results, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var failed error
	if n.before != nil {
		var apply bool
		if apply, failed = n.before(entry); !apply {
			return nil, errors.Join(ErrLost, failed)
		}
	}
	data, err := proto.Marshal(entry)
	if err != nil {
		return nil, err
	}
	n.index++
	results, err := n.Store.Apply([]names.Entry{{Index: n.index, Data: data}})
	if err != nil {
		return nil, err
	}
	return results[0], failed
}

// View implements object.Names.
func (n *Names) View(ctx context.Context) (*names.View, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return n.Store.View(), nil
}

// AdvanceEpoch begins another epoch of the collection of garbage.
func (n *Names) AdvanceEpoch(t testing.TB) {
	t.Helper()
	view := n.Store.View()
	from := view.Epoch()
	view.Close()
	if _, err := n.Propose(context.Background(), &objectv1.Entry{Operations: []*objectv1.Operation{{
		Time: 1, What: &objectv1.Operation_AdvanceEpoch{AdvanceEpoch: &objectv1.AdvanceEpoch{From: from}},
	}}}); err != nil {
		t.Fatal(err)
	}
}
