package authority

import (
	"iter"
	"slices"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/state"
)

// value is one sealed value of an object.
type value struct {
	sealed  []byte
	context string // that it was sealed under
	replace func(sealed []byte)
}

// sealedKind says where the sealed values of a kind are. A kind with a sealed value needs an entry here: otherwise
// nobody could open the value after the next rotation of the key-encryption key.
type sealedKind struct {
	// fields are the fields of the kind's message that hold sealed values.
	fields []string
	all    func(*state.Snapshot) iter.Seq[state.Object]
	// values returns the sealed values of an object, which may be changed.
	values func(o state.Object, cluster string) []value
}

var sealedKinds = map[state.Kind]sealedKind{
	state.KindAuthority: {
		[]string{"sealed_key", "sealed_next_key"},
		single((*state.Snapshot).Authority),
		of(func(o *statev1.Authority, cluster string) []value {
			context := state.AuthorityKeyContext(cluster)
			return []value{
				{o.GetSealedKey(), context, func(b []byte) { o.SealedKey = b }},
				{o.GetSealedNextKey(), context, func(b []byte) { o.SealedNextKey = b }},
			}
		}),
	},
	state.KindGossipKey: {
		[]string{"sealed"},
		single((*state.Snapshot).GossipKey),
		of(func(o *statev1.GossipKey, cluster string) []value {
			return []value{{o.GetSealed(), state.GossipKeyContext(cluster), func(b []byte) { o.Sealed = b }}}
		}),
	},
	state.KindPassword: {
		[]string{"sealed"},
		every((*state.Snapshot).Passwords),
		of(func(o *statev1.Password, _ string) []value {
			return []value{{o.GetSealed(), state.PasswordContext(uid(o)), func(b []byte) { o.Sealed = b }}}
		}),
	},
	state.KindCertificateKey: {
		[]string{"sealed"},
		every((*state.Snapshot).CertificateKeys),
		of(func(o *statev1.CertificateKey, _ string) []value {
			return []value{{o.GetSealed(), state.CertificateKeyContext(uid(o)), func(b []byte) { o.Sealed = b }}}
		}),
	},
	state.KindCertificateChallenge: {
		[]string{"sealed_key"},
		every((*state.Snapshot).CertificateChallenges),
		of(func(o *statev1.CertificateChallenge, _ string) []value {
			return []value{{o.GetSealedKey(), state.ChallengeKeyContext(uid(o)), func(b []byte) { o.SealedKey = b }}}
		}),
	},
	state.KindAcmeAccount: {
		[]string{"sealed_key"},
		every((*state.Snapshot).AcmeAccounts),
		of(func(o *statev1.AcmeAccount, _ string) []value {
			return []value{{o.GetSealedKey(), state.AcmeAccountContext(uid(o)), func(b []byte) { o.SealedKey = b }}}
		}),
	},
	state.KindSecretValue: {
		[]string{"sealed_key"},
		every((*state.Snapshot).SecretValues),
		of(func(o *statev1.SecretValue, _ string) []value {
			return []value{{o.GetSealedKey(), state.SecretKeyContext(o.GetSecretUid(), o.GetVersion()), func(b []byte) { o.SealedKey = b }}}
		}),
	},
	state.KindWorkloadKey: {
		[]string{"sealed_key"},
		every((*state.Snapshot).WorkloadKeys),
		of(func(o *statev1.WorkloadKey, cluster string) []value {
			return []value{{o.GetSealedKey(), state.WorkloadKeyContext(cluster, uid(o)), func(b []byte) { o.SealedKey = b }}}
		}),
	},
	// The settings of a DNS provider are sealed texts.
	state.KindCluster: {
		nil, single((*state.Snapshot).Cluster),
		of(func(o *v1.Cluster, _ string) []value { return settings(o.GetSpec()) }),
	},
	state.KindConfiguration: {
		nil, every((*state.Snapshot).OldestConfigurations),
		of(func(o *v1.Configuration, _ string) []value { return settings(o.GetSpec().GetCluster()) }),
	},
}

func settings(c *v1.ClusterSpec) (all []value) {
	dns := c.GetAcme().GetDns()
	for key, text := range dns.GetSettings() {
		if sealed, ok := state.SealedSetting(text); ok {
			all = append(all, value{sealed, state.DNSSettingContext(dns.GetProvider(), key), func(b []byte) { dns.Settings[key] = state.SettingText(b) }})
		}
	}
	return all
}

func uid(o state.Object) string { return o.GetMetadata().GetUid() }

func of[T state.Object](values func(T, string) []value) func(state.Object, string) []value {
	return func(o state.Object, cluster string) []value {
		one, ok := o.(T)
		if !ok {
			return nil
		}
		return slices.DeleteFunc(values(one, cluster), func(v value) bool { return len(v.sealed) == 0 })
	}
}

func every[T state.Object](list func(*state.Snapshot) iter.Seq[T]) func(*state.Snapshot) iter.Seq[state.Object] {
	return func(snap *state.Snapshot) iter.Seq[state.Object] {
		return func(yield func(state.Object) bool) {
			for o := range list(snap) {
				if !yield(o) {
					return
				}
			}
		}
	}
}

func single[T interface {
	comparable
	state.Object
}](get func(*state.Snapshot) T,
) func(*state.Snapshot) iter.Seq[state.Object] {
	return func(snap *state.Snapshot) iter.Seq[state.Object] {
		return func(yield func(state.Object) bool) {
			var none T
			if o := get(snap); o != none {
				yield(o)
			}
		}
	}
}

// maxResealed keeps one transaction small; the next tick does the rest.
const maxResealed = 200

// Count returns how many values in the state a key has sealed, and how many there are.
func Count(snap *state.Snapshot, key string) (by, total int64) {
	cluster := uid(snap.Cluster())
	for _, kind := range sealedKinds {
		for o := range kind.all(snap) {
			for _, v := range kind.values(o, cluster) {
				total++
				if identity.SealedBy(v.sealed) == key {
					by++
				}
			}
		}
	}
	return by, total
}

// Resealer seals values by another key. Equal values stay equal, so that nothing seems to have changed.
type Resealer struct {
	Sealer *identity.Sealer
	done   map[string][]byte
}

// Reseal adds to a batch what is not sealed by the key that seals now. More is left to do unless it returns true.
func (r *Resealer) Reseal(snap *state.Snapshot, b *state.Batch) (complete bool, err error) {
	cluster, key, changed := uid(snap.Cluster()), r.Sealer.KeyID(), 0
	if r.done == nil {
		r.done = map[string][]byte{}
	}
	for _, kind := range sealedKinds {
		for o := range kind.all(snap) {
			if !slices.ContainsFunc(kind.values(o, cluster), func(v value) bool { return identity.SealedBy(v.sealed) != key }) {
				continue
			}
			if changed++; changed > maxResealed {
				return false, nil
			}
			now := proto.Clone(o).(state.Object)
			for _, v := range kind.values(now, cluster) {
				if identity.SealedBy(v.sealed) == key {
					continue
				}
				same := v.context + "\x00" + string(v.sealed)
				if r.done[same] == nil {
					if r.done[same], err = r.Sealer.Reseal(v.sealed, v.context); err != nil {
						return false, err
					}
				}
				v.replace(r.done[same])
			}
			b.Update(now, o.GetMetadata().GetVersion())
		}
	}
	return changed == 0, nil
}
