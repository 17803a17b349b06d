package state

import (
	"iter"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// TagUID returns the uid of a tag.
func TagUID(repository, tag string) string { return repository + ":" + tag }

// ImportedTags is the mark that the tags of the registries were imported into the
// state: a tag without a name.
func ImportedTags() *statev1.Tag {
	return &statev1.Tag{Metadata: &v1.Metadata{Uid: TagUID("", "")}}
}

// Tag returns a tag of the cluster's own registry.
func (s *Snapshot) Tag(repository, tag string) *statev1.Tag {
	return ByUID[*statev1.Tag](s, KindTag, TagUID(repository, tag))
}

// Tags lists the tags by repository and name.
func (s *Snapshot) Tags() iter.Seq[*statev1.Tag] {
	return listByPrefix[*statev1.Tag](s, KindTag, indexUID, nil)
}

// TagsOf lists the tags of a repository by name.
func (s *Snapshot) TagsOf(repository string) iter.Seq[*statev1.Tag] {
	return listByPrefix[*statev1.Tag](s, KindTag, indexUID, []byte(TagUID(repository, "")))
}
