package login

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/relay"
	"github.com/cloudless/cloudless/internal/state"
)

const (
	// reportPause is how long the last use of a token stays in the memory of one server.
	reportPause = 3 * time.Minute
	// renewedPause is the same for the first use of a new secret, which ends the old one. A command that has read the old one
	// has used it by then.
	renewedPause = 10 * time.Second
	// reportPatience is how long the leader may take.
	reportPatience = 10 * time.Second
	// mostReported bounds the size of a transaction.
	mostReported = 1000
)

// Uses writes the last uses of tokens into the state. Each server remembers what it saw, and tells the leader from time to
// time.
type Uses struct {
	core  *core.Core
	conns *relay.Conns
	seen  *auth.Uses

	mu      sync.Mutex
	waiting map[string]auth.Use // by token
}

// NewUses reports what a server sees.
func NewUses(c *core.Core, conns *relay.Conns, seen *auth.Uses) *Uses {
	return &Uses{core: c, conns: conns, seen: seen, waiting: map[string]auth.Use{}}
}

// Run reports until ctx ends.
func (u *Uses) Run(ctx context.Context) error {
	reported := time.Now()
	for tick := time.NewTicker(renewedPause); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return ctx.Err()
		case <-tick.C:
		}
		all := time.Since(reported) >= reportPause
		if all {
			reported = time.Now()
		}
		if err := u.reportSome(ctx, all); err != nil {
			u.core.Logger.DebugContext(ctx, "the last uses of tokens are kept until the leader can be told", "error", err)
		}
	}
}

// Report tells the leader everything now.
func (u *Uses) Report(ctx context.Context) error { return u.reportSome(ctx, true) }

// reportSome tells the leader all uses, or those that cannot wait.
func (u *Uses) reportSome(ctx context.Context, all bool) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, use := range u.seen.Take() {
		u.waiting[use.TokenUID] = use
	}
	due := u.waiting
	if !all {
		due = u.endsOld(u.waiting)
	}
	for part := range slices.Chunk(slices.Collect(maps.Values(due)), mostReported) {
		if err := u.report(ctx, part); err != nil {
			return err
		}
		for _, use := range part {
			delete(u.waiting, use.TokenUID)
		}
	}
	return nil
}

// endsOld are the uses that end the secret before a renewal.
func (u *Uses) endsOld(waiting map[string]auth.Use) map[string]auth.Use {
	snap, ends := u.core.Store.Snapshot(), map[string]auth.Use{}
	for uid, use := range waiting {
		if st := snap.Token(uid).GetStatus(); st.GetOldSecretId() != "" && use.SecretID == st.GetSecretId() {
			ends[uid] = use
		}
	}
	return ends
}

// report tells the leader.
func (u *Uses) report(ctx context.Context, uses []auth.Use) error {
	ctx, cancel := context.WithTimeout(ctx, reportPatience)
	defer cancel()
	request := &v1.ReportTokenUsesRequest{}
	for _, use := range uses {
		request.Uses = append(request.Uses, &v1.TokenUse{
			TokenUid: use.TokenUID, SecretId: use.SecretID, Time: timestamppb.New(use.Time), Address: use.Address.String(),
		})
	}
	return core.TellLeader(ctx, u.core, u.conns.Ready, request, u.ReportTokenUses, v1.PeerServiceClient.ReportTokenUses)
}

// ReportTokenUses writes what a server has seen.
func (u *Uses) ReportTokenUses(ctx context.Context, request *v1.ReportTokenUsesRequest) (*v1.ReportTokenUsesResponse, error) {
	_, err := u.core.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		for _, use := range request.GetUses() {
			u.write(snap, b, use)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &v1.ReportTokenUsesResponse{}, nil
}

func (u *Uses) write(snap *state.Snapshot, b *state.Batch, use *v1.TokenUse) {
	if key := snap.AccessKey(use.GetTokenUid()); key != nil {
		writeKeyUse(b, key, use)
		return
	}
	token := snap.Token(use.GetTokenUid())
	if token == nil {
		return
	}
	next := proto.CloneOf(token)
	if next.Status == nil {
		next.Status = &v1.TokenStatus{}
	}
	st := next.Status
	if use.GetTime().AsTime().After(st.GetLastUseTime().AsTime()) {
		st.LastUseTime, st.LastUseAddress = use.GetTime(), ""
		if from, err := netip.ParseAddr(use.GetAddress()); err == nil {
			st.LastUseAddress = from.String()
		}
	}
	if old := st.GetOldSecretId(); old != "" && use.GetSecretId() == st.GetSecretId() {
		b.Delete(state.KindCredential, old)
		st.OldSecretId, st.OldExpireTime = "", nil
	}
	if !proto.Equal(next, token) {
		b.Update(next, token.GetMetadata().GetVersion())
	}
}

// writeKeyUse writes the last use of an access key.
func writeKeyUse(b *state.Batch, key *v1.AccessKey, use *v1.TokenUse) {
	if !use.GetTime().AsTime().After(key.GetStatus().GetLastUsed().AsTime()) {
		return
	}
	next := proto.CloneOf(key)
	if next.Status == nil {
		next.Status = &v1.AccessKeyStatus{}
	}
	next.Status.LastUsed = use.GetTime()
	b.Update(next, key.GetMetadata().GetVersion())
}
