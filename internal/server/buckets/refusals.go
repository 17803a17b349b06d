package buckets

import (
	"context"
	"maps"
	"sync"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/relay"
	"github.com/cloudless/cloudless/internal/state"
)

const (
	// refusalPause is the time between two events of one bucket: clients that are refused try again and again.
	refusalPause = 10 * time.Minute
	// maxRefusals bounds the buckets that are remembered.
	maxRefusals = 1000
	// tellPatience is how long the leader may take.
	tellPatience = 10 * time.Second
	// tellPause is the pause before the leader is told again.
	tellPause = 5 * time.Second
	// overQuota is the reason of the events.
	overQuota = "OverQuota"
)

// Refusals makes an event when a quota refuses what a client puts into a bucket, once in a while for each bucket. Any server
// may be the one that refuses; it tells the leader, which counts for all of them.
type Refusals struct {
	core  *core.Core
	conns *relay.Conns

	mu sync.Mutex
	// seen is when the leader was last told of a bucket, and written when it last made an event, if this is the leader.
	seen, written map[string]time.Time
	waiting       map[string]string // what to tell, by the uid of the bucket
	wake          chan struct{}
}

// NewRefusals makes events of what a server refuses while Run runs.
func NewRefusals(c *core.Core, conns *relay.Conns) *Refusals {
	return &Refusals{
		core: c, conns: conns, seen: map[string]time.Time{}, written: map[string]time.Time{}, waiting: map[string]string{},
		wake: make(chan struct{}, 1),
	}
}

// Refused notes that a quota has refused something. It does not wait.
func (r *Refusals) Refused(b object.Bucket, why *object.QuotaError) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !due(r.seen, b.UID, r.core.Now()) {
		return
	}
	r.waiting[b.UID] = why.Error()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// due is whether a bucket has its turn again, and begins its next pause.
func due(last map[string]time.Time, bucket string, now time.Time) bool {
	if before, known := last[bucket]; known && now.Sub(before) < refusalPause {
		return false
	}
	maps.DeleteFunc(last, func(_ string, before time.Time) bool { return now.Sub(before) >= refusalPause })
	if len(last) >= maxRefusals {
		return false
	}
	last[bucket] = now
	return true
}

// Run tells the leader of refusals until ctx ends.
func (r *Refusals) Run(ctx context.Context) error {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.wake:
		case <-again.C:
		}
		if err := r.tell(ctx); err != nil {
			r.core.Logger.DebugContext(ctx, "the refusals of a quota are kept until the leader can be told", "error", err)
			again.Reset(tellPause)
		}
	}
}

func (r *Refusals) tell(ctx context.Context) error {
	r.mu.Lock()
	waiting := maps.Clone(r.waiting)
	r.mu.Unlock()
	for bucket, why := range waiting {
		if err := r.tellOne(ctx, &v1.ReportOverQuotaRequest{BucketUid: bucket, Message: why}); err != nil {
			return err
		}
		r.mu.Lock()
		delete(r.waiting, bucket)
		r.mu.Unlock()
	}
	return nil
}

func (r *Refusals) tellOne(ctx context.Context, request *v1.ReportOverQuotaRequest) error {
	ctx, cancel := context.WithTimeout(ctx, tellPatience)
	defer cancel()
	return core.TellLeader(ctx, r.core, r.conns.Ready, request, r.ReportOverQuota, v1.PeerServiceClient.ReportOverQuota)
}

// ReportOverQuota makes an event of a refusal, unless the bucket has had one a moment ago.
func (r *Refusals) ReportOverQuota(ctx context.Context, request *v1.ReportOverQuotaRequest) (*v1.ReportOverQuotaResponse, error) {
	uid, now := request.GetBucketUid(), r.core.Now()
	r.mu.Lock()
	first := due(r.written, uid, now)
	r.mu.Unlock()
	if !first {
		return &v1.ReportOverQuotaResponse{}, nil
	}
	_, err := r.core.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		if bucket := snap.Bucket(uid); bucket != nil {
			b.Create(state.NewEvent(state.NewUID(), now, bucket, state.SeverityWarning, overQuota, "a put was refused: "+request.GetMessage(), "server/"+r.core.UID))
		}
		return nil
	})
	if err != nil {
		r.mu.Lock()
		delete(r.written, uid)
		r.mu.Unlock()
		return nil, err
	}
	return &v1.ReportOverQuotaResponse{}, nil
}
