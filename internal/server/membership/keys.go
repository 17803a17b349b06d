package membership

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/authority"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/state"
)

const (
	// keysPause is the pause before this server tries again to follow a rotation.
	keysPause = time.Second
	// reportTimeout bounds how long the leader waits for what one server says of its keys.
	reportTimeout = time.Second
)

// Keys are those by which this server changes the keys of the cluster.
func (s *Membership) Keys() authority.Keys { return authority.Keys{CA: s.ca, Sealer: s.sealer} }

// followKeys keeps the keys of this server as the state wants them, until ctx ends. It begins when this server has
// applied what the leader has: by an older state it would remove keys that it needs.
func (s *Membership) followKeys(ctx context.Context) error {
	if s.sealer == nil {
		return nil
	}
	for s.CatchUpWithLeader == nil || s.CatchUpWithLeader(ctx) != nil {
		if sleep.For(ctx, keysPause) != nil {
			return nil
		}
	}
	feed, complaint := s.Store.Follow(), ""
	taken := &statev1.Authority{}
	for snap := feed.Newest().Snapshot; ; {
		err := s.takeKeys(ctx, snap, &taken)
		soon, cancel := ctx, func() {}
		if err != nil {
			if complaint != err.Error() {
				complaint = err.Error()
				s.Logger.ErrorContext(ctx, "this server does not follow the rotation of the cluster's keys", "error", err)
			}
			soon, cancel = context.WithTimeout(ctx, keysPause)
		} else {
			complaint = ""
		}
		for {
			if _, failed := feed.Next(soon); failed != nil {
				break
			}
			if now := s.Store.Snapshot(); now.Authority() != snap.Authority() || now.KeyEncryptionKey() != snap.KeyEncryptionKey() {
				break
			}
		}
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		snap = s.Store.Snapshot()
	}
}

// takeKeys does what a state wants of this server. Each part is done when it is on disk, and may be repeated.
func (s *Membership) takeKeys(ctx context.Context, snap *state.Snapshot, taken **statev1.Authority) error {
	a, k := snap.Authority(), snap.KeyEncryptionKey()
	if a == nil {
		return nil
	}
	cluster := a.GetMetadata().GetUid()
	if next := k.GetNextId(); next != "" && !slices.Contains(s.sealer.KeyIDs(), next) {
		key, err := s.sealer.Unseal(k.GetSealedNext(), state.KeyEncryptionKeyContext(cluster))
		if err != nil {
			return err
		}
		defer clear(key)
		if err := s.sealer.AddKey(key); err != nil {
			return err
		}
	}
	if id := k.GetId(); id != "" && id != s.sealer.KeyID() {
		if err := s.sealer.UseKey(id); err != nil {
			return err
		}
	}
	if a != *taken {
		if err := s.takeAuthority(ctx, a, *taken); err != nil {
			return err
		}
		*taken = a
	}
	// The copy of the authority on disk must be readable without the keys that go.
	if (k.GetStep() == authority.StepDrop || k != nil && k.GetStep() == "") && identity.SealedBy(a.GetSealedKey()) == k.GetId() {
		return s.sealer.DropKeys()
	}
	return nil
}

// takeAuthority keeps the authority for the next start, and then uses it: this server signs with its key, has a
// certificate of it, and verifies others by what is trusted now.
func (s *Membership) takeAuthority(ctx context.Context, a, before *statev1.Authority) error {
	all, err := unsealAuthority(a, s.sealer)
	if err != nil {
		return err
	}
	defer clear(all.Key)
	if s.keepAuthority != nil {
		if err := s.keepAuthority(a); err != nil {
			return err
		}
	}
	if sameCertificates(a, before) {
		return nil
	}
	signs := !bytes.Equal(a.GetCertificate(), s.ca.Trust().DER())
	if err := s.ca.Set(all); err != nil {
		return err
	}
	if err := s.certificate.RenewNow(ctx); err != nil {
		return err
	}
	if err := s.port.RenewTickets(); err != nil {
		return err
	}
	if signs {
		s.conns.Renew()
	}
	if cut := s.port.CloseUntrusted(); cut > 0 {
		s.Logger.InfoContext(ctx, "connections were closed whose certificate was from an authority that is no longer trusted", "connections", cut)
	}
	return nil
}

func sameCertificates(a, b *statev1.Authority) bool {
	return slices.EqualFunc(state.TrustedAuthorities(a), state.TrustedAuthorities(b), bytes.Equal) &&
		slices.EqualFunc(a.GetEndorsements(), b.GetEndorsements(), bytes.Equal)
}

// keyReport is what this server says of its keys.
func (s *Membership) keyReport() authority.ServerReport {
	report := authority.ServerReport{}
	for _, one := range s.ca.Trust().Fingerprints() {
		report.Authorities = append(report.Authorities, one.String())
	}
	if s.sealer == nil {
		return report
	}
	sealing := s.sealer.KeyID()
	report.Keys = []string{sealing}
	for _, id := range s.sealer.KeyIDs() {
		if id != sealing {
			report.Keys = append(report.Keys, id)
		}
	}
	return report
}

// KeyReports asks all servers for their keys. Those that do not answer are missing.
func (s *Membership) KeyReports(ctx context.Context) map[string]authority.ServerReport {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	var mu sync.Mutex
	all := map[string]authority.ServerReport{s.UID: s.keyReport()}
	var asking sync.WaitGroup
	for one := range s.Store.Snapshot().Servers("") {
		uid := one.GetMetadata().GetUid()
		if uid == s.UID {
			continue
		}
		asking.Go(func() {
			conn, err := s.conns.Ready(ctx, uid)
			if err != nil {
				return
			}
			p, err := v1.NewPeerServiceClient(conn).GetProgress(ctx, &v1.GetProgressRequest{})
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			all[uid] = authority.ServerReport{Authorities: p.GetAuthorities(), Keys: p.GetKeyEncryptionKeys()}
		})
	}
	asking.Wait()
	return all
}
