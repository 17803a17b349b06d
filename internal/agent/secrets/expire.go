package secrets

import (
	"context"
	"fmt"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// longestWait is how long Run sleeps at most, because the wall clock may be set meanwhile.
const longestWait = time.Minute

func hasExpired(s *v1.NodeSecret, now time.Time) bool {
	return s.GetExpireTime() != nil && !s.GetExpireTime().AsTime().After(now)
}

// Run removes versions that expire until ctx ends, and calls notice for each of them with a sentence.
func (k *Keeper) Run(ctx context.Context, notice func(message string)) {
	if k == nil {
		return
	}
	for {
		timer := time.NewTimer(k.removeExpired(time.Now(), notice))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-k.later:
			timer.Stop()
		}
	}
}

// removeExpired removes the versions that have expired, and returns when to look again.
func (k *Keeper) removeExpired(now time.Time, notice func(string)) (next time.Duration) {
	k.mu.Lock()
	var messages []string
	next = longestWait
	for _, s := range k.held {
		if s.GetExpireTime() == nil {
			continue
		}
		if !hasExpired(s, now) {
			next = min(next, s.GetExpireTime().AsTime().Sub(now))
			continue
		}
		messages = append(messages, fmt.Sprintf("Version %d of secret %s in namespace %s has expired. It was removed from this node, where %d replicas could use it. Running programs go on.",
			s.GetVersion(), s.GetName(), s.GetNamespace(), len(s.GetReplicas())))
		k.expire(s)
	}
	k.mu.Unlock()
	for _, message := range messages {
		notice(message)
	}
	return next
}

// expire removes a version, and remembers why it is not there.
func (k *Keeper) expire(s *v1.NodeSecret) {
	k.drop(idOf(s))
	if k.expired[s.GetUid()].GetVersion() <= s.GetVersion() {
		k.expired[s.GetUid()] = copyOf(s, nil, s.GetReplicas())
	}
	k.tell(s)
}
