package secret

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// maxVariable is how long a value may be that the environment has: the kernel allows 128 KiB with the name.
const maxVariable = 128<<10 - 256

// KeptVersions is how many of its newest versions a secret lists.
const KeptVersions = 10

// VersionOf returns the version of a secret with a number, nil if it is not listed any more.
func VersionOf(s *v1.Secret, number uint64) *v1.SecretVersion {
	for _, v := range s.GetStatus().GetVersions() {
		if v.GetNumber() == number {
			return v
		}
	}
	return nil
}

// Expired reports whether a version may not be used any more.
func Expired(v *v1.SecretVersion, now time.Time) bool {
	return v.GetExpireTime() != nil && !now.Before(v.GetExpireTime().AsTime())
}

// NameOf is the name by which an audience admits a workload: that of its owner if it is a job of another one.
func NameOf(w *v1.Workload) string {
	return cmp.Or(w.GetStatus().GetOwner(), w.GetMetadata().GetName())
}

// Admits reports whether a workload of a name may use a secret of its namespace.
func Admits(s *v1.Secret, workload string) bool {
	return len(s.GetSpec().GetAudience()) == 0 || slices.Contains(s.GetSpec().GetAudience(), workload)
}

// Names lists the secrets that a spec names, each once, and whether its environment has it.
func Names(w *v1.WorkloadSpec) (names []string, environment map[string]bool) {
	for _, ref := range w.GetSecrets() {
		if !slices.Contains(names, ref.GetName()) {
			names = append(names, ref.GetName())
		}
		if ref.GetEnv() != "" {
			if environment == nil {
				environment = map[string]bool{}
			}
			environment[ref.GetName()] = true
		}
	}
	return names, environment
}

// Uses reports whether a spec names a secret.
func Uses(w *v1.WorkloadSpec, name string) bool {
	return slices.ContainsFunc(w.GetSecrets(), func(ref *v1.SecretRef) bool { return ref.GetName() == name })
}

// Users lists the workloads of a namespace that use a secret: by their spec, or by a replica that has not ended.
func Users(snap *state.Snapshot, namespace, name string) (users []*v1.Workload) {
	for w := range snap.Workloads(namespace, "") {
		if Uses(w.GetSpec(), name) || runsWith(snap, w, name) {
			users = append(users, w)
		}
	}
	return users
}

// runsWith reports whether a live replica of an earlier revision uses a secret.
func runsWith(snap *state.Snapshot, w *v1.Workload, name string) bool {
	var earlier []string
	for r := range snap.RevisionsOf(w.GetMetadata().GetUid()) {
		if Uses(r.GetSpec().GetWorkload(), name) {
			earlier = append(earlier, r.GetMetadata().GetUid())
		}
	}
	if len(earlier) == 0 {
		return false
	}
	for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
		if spec.Live(r.GetStatus().GetPhase()) && slices.Contains(earlier, r.GetSpec().GetRevisionUid()) {
			return true
		}
	}
	return false
}

// Pin gives a new revision the versions that its environment has. A secret that does not exist yet, or has expired, will
// have the next version when it is set: the revision waits for that one.
func Pin(snap *state.Snapshot, revision *v1.Revision, now time.Time) {
	_, environment := Names(revision.GetSpec().GetWorkload())
	revision.Spec.SecretVersions = nil
	if len(environment) == 0 {
		return
	}
	pinned := make(map[string]uint64, len(environment))
	for name := range environment {
		s := snap.SecretByName(revision.GetMetadata().GetNamespace(), name)
		pinned[name] = s.GetStatus().GetVersion()
		if pinned[name] == 0 || Expired(VersionOf(s, pinned[name]), now) {
			pinned[name]++
		}
	}
	revision.Spec.SecretVersions = pinned
}

// Use is the version of a secret that a replica gets.
type Use struct {
	Secret  *v1.Secret
	Version *v1.SecretVersion
}

// UsesOf lists what a replica gets now. Secrets that it waits for are left out. It is empty for a replica that is not
// wanted any more.
func UsesOf(snap *state.Snapshot, r *v1.Replica, now time.Time) (all []Use) {
	revision := snap.Revision(r.GetSpec().GetRevisionUid())
	names, environment := Names(revision.GetSpec().GetWorkload())
	if len(names) == 0 || !spec.Live(r.GetStatus().GetPhase()) {
		return nil
	}
	workload := r.GetSpec().GetWorkload()
	if w := snap.Workload(r.GetSpec().GetWorkloadUid()); w != nil {
		workload = NameOf(w)
	}
	for _, name := range names {
		s := snap.SecretByName(r.GetMetadata().GetNamespace(), name)
		if s == nil || !Admits(s, workload) {
			continue
		}
		if v := usable(snap, s, revision, environment[name], now); v != nil {
			all = append(all, Use{Secret: s, Version: v})
		}
	}
	return all
}

// usable is the version of a secret that replicas of a revision get, nil if there is none. What the environment has
// stays as long as it can be used, because only new replicas can get another one; files follow the current version.
func usable(snap *state.Snapshot, s *v1.Secret, revision *v1.Revision, environment bool, now time.Time) *v1.SecretVersion {
	has := func(number uint64) *v1.SecretVersion {
		v := VersionOf(s, number)
		if v == nil || Expired(v, now) || snap.SecretValue(ValueUID(s.GetMetadata().GetUid(), number)) == nil {
			return nil
		}
		return v
	}
	if environment {
		if v := has(revision.GetSpec().GetSecretVersions()[s.GetMetadata().GetName()]); v != nil {
			return v
		}
	}
	return has(s.GetStatus().GetVersion())
}

// Waits says which secret keeps new replicas of a revision from starting, why, and what helps. It is empty if none does.
func Waits(snap *state.Snapshot, w *v1.Workload, revision *v1.Revision, now time.Time) string {
	names, environment := Names(revision.GetSpec().GetWorkload())
	namespace := w.GetMetadata().GetNamespace()
	for _, name := range names {
		s := snap.SecretByName(namespace, name)
		switch {
		case s == nil:
			return fmt.Sprintf("waits for secret %s: it does not exist; set it with: %s", name, spec.Hint(namespace, "cloudless secret set "+name))
		case !Admits(s, NameOf(w)):
			return fmt.Sprintf("waits for secret %s: its audience does not include workload %s; add it with: %s", name, NameOf(w),
				spec.Hint(namespace, "cloudless secret set "+name+" --keep --also-for "+NameOf(w)))
		}
		v := usable(snap, s, revision, environment[name], now)
		switch {
		case environment[name] && v.GetSize() > maxVariable:
			return fmt.Sprintf("waits for secret %s: version %d has %d bytes, and a variable of the environment at most %d; use a path instead of env", name, v.GetNumber(), v.GetSize(), maxVariable)
		case v == nil:
			return fmt.Sprintf("waits for secret %s: %s; set a new version with: %s", name, unusable(s, now), spec.Hint(namespace, "cloudless secret set "+name))
		}
	}
	return ""
}

// unusable says why the current version of a secret cannot be used.
func unusable(s *v1.Secret, now time.Time) string {
	number := s.GetStatus().GetVersion()
	if v := VersionOf(s, number); Expired(v, now) {
		return fmt.Sprintf("version %d expired at %s", number, v.GetExpireTime().AsTime().Format(time.RFC3339))
	}
	return fmt.Sprintf("the value of version %d is not there any more", number)
}

// ReceiptUID is the uid of the receipt for what a replica got of a secret.
func ReceiptUID(secretUID, replicaUID string) string { return secretUID + ":" + replicaUID }

// Has reports whether a node has acknowledged a version of a secret for a replica.
func Has(snap *state.Snapshot, s *v1.Secret, r *v1.Replica, version uint64) bool {
	receipt := snap.SecretReceipt(ReceiptUID(s.GetMetadata().GetUid(), r.GetMetadata().GetUid()))
	return slices.ContainsFunc(receipt.GetDeliveries(), func(d *v1.SecretDelivery) bool { return d.GetVersion() == version })
}

// Problem says what is wrong with a secret and what helps. It is empty if it can be used, or if nothing uses it.
func Problem(snap *state.Snapshot, s *v1.Secret, now time.Time) string {
	m := s.GetMetadata()
	if v := VersionOf(s, s.GetStatus().GetVersion()); !Expired(v, now) || len(Users(snap, m.GetNamespace(), m.GetName())) == 0 {
		return ""
	}
	return fmt.Sprintf("secret %s: %s; set a new version with: %s", m.GetName(), unusable(s, now), spec.Hint(m.GetNamespace(), "cloudless secret set "+m.GetName()))
}
