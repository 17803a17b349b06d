package images

import (
	"iter"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"

	"github.com/cloudless/cloudless/internal/assignment"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// Users are the workloads that use an image, by repository:tag and by repository@digest,
// and the earlier revisions with it, by repository@digest.
type Users struct {
	now, Earlier map[string][]string
	viewer       core.Principal
}

// UsesOf finds out which images are used: by the current revision of a workload, by
// revisions that still run, and by those that a rollback can restore.
func UsesOf(snap *state.Snapshot) Users {
	uses := Users{now: map[string][]string{}, Earlier: map[string][]string{}}
	for w := range snap.Workloads("", "") {
		revisions := map[string]bool{w.GetStatus().GetRevisionUid(): true}
		for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
			if assignment.Holds(r, r.GetSpec().GetNodeUid()) {
				revisions[r.GetSpec().GetRevisionUid()] = true
			}
		}
		user := w.GetMetadata().GetNamespace() + "/" + w.GetMetadata().GetName()
		for uid := range revisions {
			uses.add(user, snap.Revision(uid).GetSpec())
		}
		for r := range snap.RevisionsOf(w.GetMetadata().GetUid()) {
			if r.GetMetadata().GetUid() != w.GetStatus().GetRevisionUid() {
				uses.addEarlier(user+":"+strconv.FormatUint(r.GetSpec().GetNumber(), 10), r.GetSpec())
			}
		}
	}
	return uses
}

func (u Users) add(user string, revision *v1.RevisionSpec) {
	for _, from := range []string{revision.GetImage(), revision.GetWorkload().GetImage()} {
		name, err := image.ParseName(from)
		if err != nil || !name.Local() {
			continue
		}
		for _, key := range []string{name.Repository + "@" + name.Digest, name.Repository + ":" + name.Tag} {
			if !slices.Contains(u.now[key], user) {
				u.now[key] = append(u.now[key], user)
			}
		}
	}
}

func (u Users) addEarlier(revision string, is *v1.RevisionSpec) {
	if name, err := image.ParseName(is.GetImage()); err == nil && name.Local() && name.Digest != "" {
		key := name.Repository + "@" + name.Digest
		u.Earlier[key] = append(u.Earlier[key], revision)
	}
}

// Digests yields all images that revisions name, as repository@digest.
func (u Users) Digests() iter.Seq[string] {
	return func(yield func(string) bool) {
		for name := range u.now {
			if strings.Contains(name, "@sha256:") && !yield(name) {
				return
			}
		}
		for name := range u.Earlier {
			if _, twice := u.now[name]; !twice && !yield(name) {
				return
			}
		}
	}
}

// SeenBy returns the same, where a caller learns only that there are users in namespaces that it may not see.
func (u Users) SeenBy(p core.Principal) Users {
	u.viewer = p
	return u
}

// Of returns the users of an image by name.
func (u Users) Of(repository, tag, digest string) []string {
	users := slices.Clone(u.now[repository+"@"+digest])
	if tag != "" {
		users = append(users, u.now[repository+":"+tag]...)
	}
	return u.seen(users)
}

// EarlierOf returns the earlier revisions with an image.
func (u Users) EarlierOf(repository, digest string) []string {
	return u.seen(slices.Clone(u.Earlier[repository+"@"+digest]))
}

func (u Users) seen(users []string) []string {
	for i, user := range users {
		if namespace, _, _ := strings.Cut(user, "/"); !u.viewer.Sees("workload", namespace) {
			users[i] = "workloads of other namespaces"
		}
	}
	slices.Sort(users)
	return slices.Compact(users)
}

// KeepRevisions keeps the images of all revisions, so that a workload can be rolled back.
func KeepRevisions(snap *state.Snapshot) registry.Keep {
	named := map[string]bool{}
	for w := range snap.Workloads("", "") {
		for r := range snap.RevisionsOf(w.GetMetadata().GetUid()) {
			named[r.GetSpec().GetImage()] = true
		}
	}
	return func(repository, digest string) bool {
		return named[image.Name{Registry: image.ClusterRegistry, Repository: repository}.Pinned(digest)]
	}
}

// Keep also keeps the images of tags, and those of deleted tags until they can no longer be
// restored: the tags of this server may lag behind.
func (s *Images) Keep(snap *state.Snapshot) registry.Keep {
	used := KeepRevisions(snap)
	named := map[string]bool{}
	for _, d := range s.DeletedIn(snap) {
		named[d.Repository+"@"+d.Digest] = true
	}
	for t := range snap.Tags() {
		repository, _ := TagName(t)
		named[repository+"@"+t.GetDigest()] = true
	}
	return func(repository, digest string) bool {
		return named[repository+"@"+digest] || used(repository, digest)
	}
}
