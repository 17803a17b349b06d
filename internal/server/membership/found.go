package membership

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/control/gossipkey"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/ipam"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// featureLevel is the highest level of stored state that this version understands. It rises
// with every kind of object or change that an older server could not apply.
const featureLevel = 2

// Site has the addresses that the nodes of a new cluster must not get: nodes could not
// reach a server whose address is in their range.
type Site struct {
	Address string         // at which others reach the first server
	Used    []netip.Prefix // networks of its machine
}

// Found returns the cluster's authority. If the state is empty, it founds the cluster.
func Found(ctx context.Context, c *consensus.Consensus, sealer *identity.Sealer, at Site) (*identity.CA, error) {
	snap, err := c.Read(ctx)
	if err != nil {
		return nil, err
	}
	if snap.Authority() == nil {
		if err := found(ctx, c, sealer, at); err != nil {
			return nil, fmt.Errorf("found the cluster: %w", err)
		}
		if snap, err = c.Read(ctx); err != nil {
			return nil, err
		}
	}
	return openAuthority(snap.Authority(), sealer)
}

func found(ctx context.Context, c *consensus.Consensus, sealer *identity.Sealer, at Site) error {
	now := time.Now().UTC()
	id := state.NewUID()
	ca, err := identity.NewCA(id, now)
	if err != nil {
		return err
	}
	key, err := ca.MarshalKey()
	if err != nil {
		return err
	}
	sealed, err := sealer.Seal(key, state.AuthorityKeyContext(id))
	if err != nil {
		return err
	}
	range6, err := ipam.RandomULA(rand.Reader)
	if err != nil {
		return err
	}
	founder, err := identity.NewID(id, identity.KindServer, c.ID())
	if err != nil {
		return err
	}
	gossipKey, err := gossipkey.New(id, sealer)
	if err != nil {
		return err
	}
	address, _ := hostAddress(at.Address)
	range4 := ipam.DefaultRange4(address, at.Used)
	services4, services6 := spec.DefaultServiceRanges(range4, range6, at.Used)
	settings := &v1.ClusterSpec{
		RangeV4: range4.String(), RangeV6: range6.String(), ServiceRangeV4: services4.String(), ServiceRangeV6: services6.String(),
	}
	var b state.Batch
	b.Create(&v1.Cluster{
		ApiVersion: spec.APIVersion,
		Kind:       "Cluster",
		Metadata:   &v1.Metadata{Uid: id, Name: "cloudless"},
		Spec:       settings,
		Status: &v1.ClusterStatus{
			CaCertificate: string(ca.Trust().PEM()), CaFingerprint: ca.Trust().Fingerprint().String(),
			Epoch: 1, FeatureLevel: featureLevel, Configuration: spec.FirstConfiguration, NamesFounder: c.ID(),
		},
	})
	b.Create(spec.NewConfiguration(state.NewUID(), spec.FirstConfiguration, founder.String(), settings))
	b.Create(gossipKey)
	b.Create(state.ImportedTags()) // a new registry has none
	b.Create(&statev1.Authority{Metadata: &v1.Metadata{Uid: id}, Certificate: ca.Trust().DER(), SealedKey: sealed})
	_, err = c.Propose(ctx, b.Transaction(now))
	return err
}
