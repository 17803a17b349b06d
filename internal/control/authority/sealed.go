package authority

import (
	"cmp"
	"iter"
	"slices"
	"strconv"

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
	state.KindAccessKeySecret: {
		[]string{"sealed"},
		every((*state.Snapshot).AccessKeySecrets),
		of(func(o *statev1.AccessKeySecret, _ string) []value {
			return []value{{o.GetSealed(), state.AccessKeyContext(uid(o)), func(b []byte) { o.Sealed = b }}}
		}),
	},
	state.KindBucketKey: {
		[]string{"sealed"},
		every((*state.Snapshot).BucketKeys),
		of(func(o *statev1.BucketKey, _ string) []value {
			return []value{{o.GetSealed(), state.BucketKeyContext(uid(o), o.GetId()), func(b []byte) { o.Sealed = b }}}
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

// Reseal adds to a batch what is not sealed by the key that seals now. More is left to do unless it returns true. What no
// key opens stays as it is: the old key would not help anybody to read it.
func (r *Resealer) Reseal(snap *state.Snapshot, b *state.Batch) (complete bool, err error) {
	if !holdsKeys(snap, r.Sealer) {
		return false, errLacksKeys // what it cannot open may be good
	}
	cluster, key, changed := uid(snap.Cluster()), r.Sealer.KeyID(), 0
	if r.done == nil {
		r.done = map[string][]byte{}
	}
	for _, kind := range sealedKinds {
		for o := range kind.all(snap) {
			if !slices.ContainsFunc(kind.values(o, cluster), func(v value) bool { return identity.SealedBy(v.sealed) != key }) {
				continue
			}
			now, some := proto.Clone(o).(state.Object), false
			for _, v := range kind.values(now, cluster) {
				if identity.SealedBy(v.sealed) == key {
					continue
				}
				if sealed := r.again(v); sealed != nil {
					v.replace(sealed)
					some = true
				}
			}
			if !some {
				continue
			}
			if changed++; changed > maxResealed {
				return false, nil
			}
			b.Update(now, o.GetMetadata().GetVersion())
		}
	}
	return changed == 0, nil
}

// again is a value sealed by the key that seals now; nil if no key opens it.
func (r *Resealer) again(v value) []byte {
	same := v.context + "\x00" + string(v.sealed)
	if r.done[same] == nil {
		sealed, err := r.Sealer.Reseal(v.sealed, v.context)
		if err != nil {
			return nil
		}
		r.done[same] = sealed
	}
	return r.done[same]
}

// holdsKeys reports whether a server has the keys that seal now and sealed before. Otherwise it cannot say what is
// unreadable.
func holdsKeys(snap *state.Snapshot, sealer *identity.Sealer) bool {
	for _, id := range []string{snap.KeyEncryptionKey().GetId(), snap.KeyEncryptionKey().GetPreviousId()} {
		if id != "" && !slices.Contains(sealer.KeyIDs(), id) {
			return false
		}
	}
	return true
}

// Unreadable names the objects with a sealed value that no key opens: the key that sealed it is gone, or it was damaged.
func Unreadable(snap *state.Snapshot, sealer *identity.Sealer) (names []string) {
	if sealer == nil || !holdsKeys(snap, sealer) {
		return nil
	}
	cluster, key := uid(snap.Cluster()), cmp.Or(snap.KeyEncryptionKey().GetId(), sealer.KeyID())
	for kind, one := range sealedKinds {
		for o := range one.all(snap) {
			if slices.ContainsFunc(one.values(o, cluster), func(v value) bool {
				if identity.SealedBy(v.sealed) == key {
					return false
				}
				plain, err := sealer.Unseal(v.sealed, v.context)
				clear(plain)
				return err != nil
			}) {
				names = append(names, nameOf(snap, kind, o))
			}
		}
	}
	slices.Sort(names)
	return names
}

// nameOf names an object as users know it: most of what is sealed belongs to another object.
func nameOf(snap *state.Snapshot, kind state.Kind, o state.Object) string {
	full := func(kind string, o state.Object) string {
		if namespace := o.GetMetadata().GetNamespace(); namespace != "" {
			return kind + " " + namespace + "/" + o.GetMetadata().GetName()
		}
		return kind + " " + o.GetMetadata().GetName()
	}
	if v, ok := o.(*statev1.SecretValue); ok {
		if owner := snap.Secret(v.GetSecretUid()); owner != nil {
			return full("secret", owner) + " version " + strconv.FormatUint(v.GetVersion(), 10)
		}
	}
	if owner := snap.Login(uid(o)); owner != nil && kind == state.KindPassword {
		return full("login", owner)
	}
	if owner := snap.Certificate(uid(o)); owner != nil && kind == state.KindCertificateKey {
		return full("certificate", owner)
	}
	if owner := snap.AccessKey(uid(o)); owner != nil && kind == state.KindAccessKeySecret {
		return full("access key", owner)
	}
	if owner := snap.Bucket(uid(o)); owner != nil && kind == state.KindBucketKey {
		return full("bucket", owner)
	}
	return string(kind) + " " + cmp.Or(o.GetMetadata().GetName(), uid(o))
}

// SealedNow makes sure that what a transaction adds to the sealed values is sealed by the key that seals when it is
// stored: it seals again what was sealed before the key changed, and the transaction fails if the key changes before it
// is stored. So the old key can go when the state has nothing of it, however long a transaction has been on its way.
func (k Keys) SealedNow(snap *state.Snapshot, b *state.Batch) error {
	cluster, kek := uid(snap.Cluster()), snap.KeyEncryptionKey()
	var stored map[string]bool // filled only while a key is being replaced
	seals := false
	for o := range state.Puts[state.Object](b) {
		kind, ok := sealedKinds[state.KindOf(o)]
		if !ok {
			continue
		}
		for _, v := range kind.values(o, cluster) {
			seals = true
			if kek == nil || identity.SealedBy(v.sealed) == kek.GetId() {
				continue
			}
			if stored == nil {
				stored = storedValues(snap)
			}
			if stored[string(v.sealed)] { // the leader seals it again, or nobody can
				continue
			}
			if k.Sealer == nil || k.Sealer.KeyID() != kek.GetId() {
				return errBehind
			}
			sealed, err := k.Sealer.Reseal(v.sealed, v.context)
			if err != nil {
				return err
			}
			v.replace(sealed)
		}
	}
	if seals && cluster != "" {
		b.CheckFirst(state.KindKeyEncryptionKey, cluster, kek.GetMetadata().GetVersion())
	}
	return nil
}

func storedValues(snap *state.Snapshot) map[string]bool {
	cluster, all := uid(snap.Cluster()), map[string]bool{}
	for _, kind := range sealedKinds {
		for o := range kind.all(snap) {
			for _, v := range kind.values(o, cluster) {
				all[string(v.sealed)] = true
			}
		}
	}
	return all
}
