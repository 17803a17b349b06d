package certificates

import (
	"context"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/acme"
	"github.com/cloudless/cloudless/internal/state"
)

// challenges stores what every node of the ingress answers.
type challenges struct {
	*term
	certificate *v1.Certificate
}

// uidOf names the answers for a certificate. An order has one at a time.
func (c *challenges) uidOf() string { return c.certificate.GetMetadata().GetUid() }

// Present stores an answer.
func (c *challenges) Present(ctx context.Context, answer acme.Challenge) error {
	uid := c.uidOf()
	made := &statev1.CertificateChallenge{
		Metadata: &v1.Metadata{Uid: uid}, Host: answer.Host, Token: answer.Token, KeyAuthorization: answer.KeyAuthorization, Chain: string(answer.Chain),
	}
	if len(answer.Key) > 0 {
		sealed, err := c.Sealer.Seal(answer.Key, state.ChallengeKeyContext(uid))
		if err != nil {
			return err
		}
		made.SealedKey = sealed
	}
	_, err := c.Proposer.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		if snap.Certificate(uid) == nil {
			return context.Canceled // its routes are gone
		}
		b.Put(made)
		return nil
	})
	return err
}

// Remove removes an answer.
func (c *challenges) Remove(ctx context.Context, _ acme.Challenge) error {
	uid := c.uidOf()
	_, err := c.Proposer.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		if snap.CertificateChallenge(uid) != nil {
			b.Delete(state.KindCertificateChallenge, uid)
		}
		return nil
	})
	return err
}

// forgetChallenges removes the answers of orders that ended with an earlier leader.
func (t *term) forgetChallenges(ctx context.Context) error {
	snap := t.Store.Snapshot()
	if snap.Count(state.KindCertificateChallenge) == 0 {
		return nil
	}
	_, err := t.Proposer.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		for one := range snap.CertificateChallenges() {
			b.Delete(state.KindCertificateChallenge, one.GetMetadata().GetUid())
		}
		return nil
	})
	return err
}
