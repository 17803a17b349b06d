package consensus

import (
	"context"
	"errors"

	"github.com/cloudless/cloudless/internal/state"
)

// Consensus is this server's part in the control group, which agrees on transactions of the state.
type Consensus struct {
	*Group
	store        *state.Store
	transactions *transactions
}

var errNoStore = errors.New("consensus needs a store")

// Open restores what Dir holds and joins the cluster, as [OpenGroup] does.
func Open(ctx context.Context, o Options) (*Consensus, error) {
	if o.Store == nil {
		return nil, errNoStore
	}
	machine := &transactions{store: o.Store}
	g, err := OpenGroup(ctx, o, machine)
	if err != nil {
		return nil, err
	}
	return &Consensus{Group: g, store: o.Store, transactions: machine}, nil
}
